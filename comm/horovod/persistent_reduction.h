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

#include <atomic>
#include <memory>
#include <span>
#include <vector>

#include "comm/api.h"

namespace agspeed::comm {

/// What Horovod reduces, and bfloat16.
bool isReduced(at::ScalarType type);

class PersistentReduction {
 public:
  using Tensors = std::span<const at::Tensor>;

  /// `request`: an all-reduce but for dtype and shapes, which are the tensors'.
  PersistentReduction(std::shared_ptr<World> world, Request request)
      : world_(std::move(world)), request_(std::move(request)) {}
  ~PersistentReduction();
  PersistentReduction(const PersistentReduction&) = delete;

  /// Whether these can be bound: dense, in host memory, all of one type that is reduced. Requires: not empty.
  static bool canBind(Tensors tensors);

  /// Whether it is another request than `other` but for dtype and shapes.
  bool differsFrom(const Request& other) const;
  /// What the next start reduces, and where to; may be the same. Requires: it is not under way, canBind() both.
  void bind(NamedGroup& group, Tensors inputs, Tensors outputs);
  const NamedHandle& operation() const { return operation_; }
  /// Of the last bind().
  Tensors outputs() const { return outputs_; }
  /// Returns once the reduction that was started has ended. Throws as TensorWork::wait().
  void wait();
  /// Lets the tensors go. Requires: it is not under way.
  void dropTensors();

  /// For those who share it: whether the caller may use it alone, until release().
  bool tryAcquire() { return !isAcquired_.exchange(true); }
  void release() { isAcquired_ = false; }

 private:
  bool fits(Tensors tensors) const;

  const std::shared_ptr<World> world_;
  const Request request_;
  NamedHandle operation_;
  at::ScalarType type_ = at::kFloat;          ///< of operation_
  std::vector<at::Tensor> inputs_, outputs_;  ///< inputs_ is empty where they are the outputs
  std::atomic<bool> isAcquired_ = false;
};

}  // namespace agspeed::comm
