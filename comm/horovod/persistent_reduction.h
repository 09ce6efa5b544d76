// SPDX-License-Identifier: Apache-2.0
// PersistentReduction: an all-reduce of dense tensors in host memory that comes again, step by step, under one name.
//
// As a persistent operation of MPI: what stays the same from step to step (name, types, shapes) is made once, and a
// start only says where the tensors are. TensorGroup starts it.
//
// Threading: one thread at a time, but tryAcquire() and release(). Ownership: keeps the tensors from bind() until
// dropTensors(), or where it ends before, until the operation has; keeps the world.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/DimVector.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/api.h"

namespace agspeed::comm {

/// What Horovod reduces, and bfloat16.
bool isReduced(at::ScalarType type);

/// By Horovod's numbers; nothing for Adasum, which is none of ours, and for what is none.
std::optional<NamedReduction> reductionOf(int64_t number);

class PersistentReduction {
 public:
  using Tensors = std::span<const at::Tensor>;
  /// What differs between reductions beside the tensors.
  struct Kind {
    NamedReduction reduction = NamedReduction::kAverage;
    double prescale = 1, postscale = 1;

    bool operator==(const Kind&) const = default;
  };

  /// `request`: an all-reduce but for dtype and shapes, which are the tensors'. `released`: each release() sets it.
  PersistentReduction(std::shared_ptr<World> world, Request request,
                      std::shared_ptr<std::atomic<bool>> released = nullptr)
      : world_(std::move(world)), released_(std::move(released)), request_(std::move(request)) {}
  ~PersistentReduction();
  PersistentReduction(const PersistentReduction&) = delete;

  /// Whether these can be bound: dense, in host memory, all of one type that is reduced. Requires: not empty.
  static bool canBind(Tensors tensors);

  const std::string& name() const { return request_.name; }
  Kind kind() const { return {request_.reduction, request_.prescale, request_.postscale}; }
  /// What the next start reduces, and where to; may be the same. Requires: it is not under way, canBind() both.
  void bind(NamedGroup& group, Tensors inputs, Tensors outputs);
  const NamedHandle& operation() const { return operation_; }
  /// Of the last bind().
  Tensors outputs() const { return outputs_; }
  /// Returns once the reduction that was started has ended. Throws as TensorWork::wait().
  void wait();
  /// Lets the tensors go. Requires: it is not under way.
  void dropTensors();
  struct Taken {
    at::Tensor output, input;  ///< `input` is undefined where it is the output
  };
  /// The same of a single tensor, for the caller to let go.
  Taken takeTensors();

  /// For those who share it: whether the caller may use it alone, until release().
  bool tryAcquire() { return !isAcquired_.exchange(true, std::memory_order_acquire); }
  void release() {
    isAcquired_.store(false, std::memory_order_release);
    if (released_ != nullptr) released_->store(true, std::memory_order_release);
  }

 private:
  bool fits(Tensors tensors) const;

  const std::shared_ptr<World> world_;  ///< ends behind the operation
  const std::shared_ptr<std::atomic<bool>> released_;
  std::atomic<bool> isAcquired_ = false;
  at::ScalarType type_ = at::kFloat;  ///< of operation_
  NamedHandle operation_;
  c10::DimVector shape_;                      ///< of its first tensor
  std::vector<at::Tensor> outputs_, inputs_;  ///< inputs_ is empty where they are the outputs
  const Request request_;
};

}  // namespace agspeed::comm
