// SPDX-License-Identifier: Apache-2.0
// TensorWork: a named operation on tensors that was started, and its results.
//
// Thread-safety: one thread at a time. Ownership: keeps the tensors alive until the operation has ended, even if the
// work itself is destroyed before; keeps the world.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "comm/api.h"
#include "comm/c10d/buffers.h"

namespace agspeed::comm {

/// Throws DistBackendError for an operation that failed, also if ranks called it differently.
[[noreturn]] void raiseFailed(const Status& status);

class TensorWork {
 public:
  using Tensors = std::vector<at::Tensor>;

  /// State that has to live as long as the operation, which may be longer than the work.
  struct State {
    Buffers buffers;
    Tensors inputs, outputs;
    std::shared_ptr<World> world;
  };

  TensorWork(NamedHandle operation, std::shared_ptr<State> state)
      : operation_(std::move(operation)), state_(std::move(state)) {}
  ~TensorWork();
  TensorWork(const TensorWork&) = delete;

  /// Whether wait() would return at once.
  bool poll() { return operation_->poll(); }
  /// Waits and returns the outputs, on the device of the inputs. Throws as raiseFailed().
  Tensors wait();
  /// receivedRows(): rows that came from each rank. lastJoined(): the last rank that joined. Require: wait() has
  /// returned.
  std::vector<int64_t> receivedRows() const { return operation_->receivedRows(); }
  int lastJoined() const { return operation_->lastJoined(); }
  /// See NamedOperation. Requires: wait() has returned or thrown.
  bool areKindsDifferent() const { return operation_->areKindsDifferent(); }

 private:
  NamedHandle operation_;
  std::shared_ptr<State> state_;
  bool isFinished_ = false;
};

}  // namespace agspeed::comm
