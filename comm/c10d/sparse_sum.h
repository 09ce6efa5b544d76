// SPDX-License-Identifier: Apache-2.0
// SparseSum: an all-reduce of sparse (COO) tensors, and torch's handle of it.
//
// First the ranks gather how many elements each of them has. Then each rank sends its elements to all others, and adds
// up all of them in the order of the ranks, so all ranks get the same bits. The second step runs when the first one is
// done. It may run at any time between other operations of the group, because messages are not ordered with
// collectives. Steps continue on the group's thread for callbacks.
//
// Threading: as c10d::Work. Ownership: keeps itself and the objects that its links hold until it is done.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <functional>
#include <vector>

namespace agspeed::comm {

/// The functions of its group that a sum calls, on any thread.
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
  /// Starts the sum over all ranks, which will replace the elements of `tensor`. Throws ValueError if it cannot be
  /// communicated.
  static c10::intrusive_ptr<SparseSum> start(const at::Tensor& tensor, SparseLinks links);

  std::vector<at::Tensor> result() override { return {tensor_}; }
  /// The future's value is a list of the tensor.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }

 private:
  using Tensors = SparseLinks::Tensors;

  SparseSum(const at::Tensor& tensor, SparseLinks links);

  void gatherFacts();
  void exchangeElements();
  void addUp();
  /// Runs `step` when `work` is done, on a thread for callbacks.
  void then(const SparseLinks::TorchWork& work, void (SparseSum::*step)());
  /// Ends the work, as a failure unless `failure` is null.
  void end(const std::exception_ptr& failure);

  SparseLinks links_;  ///< kept until it is done
  const at::Tensor tensor_;
  const c10::intrusive_ptr<c10::ivalue::Future> future_;
  at::Tensor own_;                 ///< this rank's tensor, coalesced
  Tensors facts_;                  ///< factsOf() each rank's tensor
  std::vector<Tensors> elements_;  ///< per rank: indices and values
};

}  // namespace agspeed::comm
