// SPDX-License-Identifier: Apache-2.0
// TensorWork: a named operation on tensors that has been started, and its results.
//
// Thread-safety: one thread at a time. Ownership: the tensors are kept alive until the operation has completed, even if
// the work is destroyed before. Keeps the world.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "comm/api.h"
#include "comm/c10d/buffers.h"

namespace agspeed::comm::horovod {

/// Throws DistBackendError for an operation that has failed, for example because its calls differed between ranks.
[[noreturn]] void raiseFailed(const Status& status);

class TensorWork {
 public:
  using Tensors = std::vector<at::Tensor>;

  /// State that must live until the operation has completed, which may be longer than the work.
  struct State {
    c10d::Buffers buffers;
    Tensors inputs, outputs;
    std::shared_ptr<World> world;
  };

  TensorWork(NamedHandle operation, std::shared_ptr<State> state)
      : operation_(std::move(operation)), state_(std::move(state)) {}
  ~TensorWork();
  TensorWork(const TensorWork&) = delete;

  /// Whether wait() would return at once.
  bool poll() { return operation_->poll(); }
  /// Waits for the operation and returns its outputs, on the device of the inputs. Throws as raiseFailed().
  Tensors wait();
  /// receivedRows() returns how many rows came from each rank, lastJoined() the rank that joined last. Requires: wait()
  /// has returned.
  std::vector<int64_t> receivedRows() const { return operation_->receivedRows(); }
  int lastJoined() const { return operation_->lastJoined(); }
  /// See NamedOperation::areKindsDifferent(). Requires: wait() has returned or thrown.
  bool areKindsDifferent() const { return operation_->areKindsDifferent(); }

 private:
  NamedHandle operation_;
  std::shared_ptr<State> state_;
  bool isFinished_ = false;
};

}  // namespace agspeed::comm::horovod
