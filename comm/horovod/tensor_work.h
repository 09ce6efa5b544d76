// SPDX-License-Identifier: Apache-2.0
// TensorWork: a named operation on tensors that was started, and its results.
//
// Thread-safety: one thread at a time. Ownership: keeps the tensors alive until the operation has ended, also where the
// work itself is dropped before; keeps the world.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "comm/api.h"
#include "comm/c10d/buffers.h"

namespace agspeed::comm {

/// Throws DistBackendError: what was started has failed, also where ranks called it differently.
[[noreturn]] void raiseFailed(const Status& status);

class TensorWork {
 public:
  using Tensors = std::vector<at::Tensor>;

  /// What outlives the work where the operation does.
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
  /// The outputs, on the device of the inputs. Throws as raiseFailed().
  Tensors wait();
  /// Rows that came from each rank; the last rank that joined. Require: wait() has returned.
  std::vector<int64_t> receivedRows() const { return operation_->receivedRows(); }
  int lastJoined() const { return operation_->lastJoined(); }
  /// As NamedOperation. Requires: wait() has returned or thrown.
  bool areKindsDifferent() const { return operation_->areKindsDifferent(); }

 private:
  NamedHandle operation_;
  std::shared_ptr<State> state_;
  bool isFinished_ = false;
};

}  // namespace agspeed::comm
