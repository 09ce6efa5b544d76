// SPDX-License-Identifier: Apache-2.0
// SparseSum: an all-reduce of sparse (COO) tensors, as torch's handle of it.
//
// Ranks first gather how many elements each of them has, then each sends its own to all others, and each adds up all
// of them in the order of the ranks, so that all have the same bits. The second step runs when the first one is done,
// at any time between other operations of the group: it takes messages, which have no place in the order of
// collectives. Steps go on on the group's thread for callbacks.
//
// Threading: as c10d::Work. Ownership: keeps itself and what its links hold until it is done.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <functional>
#include <vector>

namespace agspeed::comm {

/// What a sum asks of its group. Called on any thread.
struct SparseLinks {
  using TorchWork = c10::intrusive_ptr<::c10d::Work>;
  using Tensors = std::vector<at::Tensor>;

  int rank = 0;
  std::function<TorchWork(Tensors& outputs, const at::Tensor& input)> allGather;
  /// Sends `own` to every other rank and receives the tensors `others[rank]` from it, in this order.
  std::function<TorchWork(const Tensors& own, const std::vector<Tensors>& others)> exchange;
};

class SparseSum final : public ::c10d::Work {
 public:
  /// The sum over all ranks will replace the elements of `tensor`. Throws ValueError where it cannot be communicated.
  static c10::intrusive_ptr<SparseSum> start(const at::Tensor& tensor, SparseLinks links);

  std::vector<at::Tensor> result() override { return {tensor_}; }
  /// Yields a list of the tensor.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }

 private:
  using Tensors = SparseLinks::Tensors;

  SparseSum(const at::Tensor& tensor, SparseLinks links);

  void gatherFacts();
  void exchangeElements();
  void addUp();
  /// Takes the next step when `work` is done, on a thread for callbacks.
  void then(const SparseLinks::TorchWork& work, void (SparseSum::*step)());
  /// Ends the work, in failure unless `failure` is null.
  void end(const std::exception_ptr& failure);

  SparseLinks links_;  ///< until it is done
  const at::Tensor tensor_;
  const c10::intrusive_ptr<c10::ivalue::Future> future_;
  at::Tensor own_;                 ///< coalesced
  Tensors facts_;                  ///< of each rank
  std::vector<Tensors> elements_;  ///< of each rank: indices and values
};

}  // namespace agspeed::comm
