// SPDX-License-Identifier: Apache-2.0
// SparseSum: an all-reduce of sparse (COO) tensors. It is also torch's handle of this operation.
//
// It has three steps. The ranks gather the number of elements of each rank. Each rank sends its elements to all other
// ranks. Each rank adds up the elements of all ranks, in the order of the ranks, so that all ranks get the same bits.
// The second step may run at any time between other operations of the group, because messages are not ordered with
// collectives. The second and third steps begin on a thread for callbacks.
//
// Threading: as c10d::Work. Ownership: a started sum keeps itself alive, and the objects that its links hold, until it
// is done.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <functional>
#include <vector>

namespace agspeed::comm::c10d {

/// The group's rank, and the functions of the group that a sum calls, on any thread.
struct SparseLinks {
  using TorchWork = c10::intrusive_ptr<::c10d::Work>;
  using Tensors = std::vector<at::Tensor>;

  int rank = 0;
  /// Starts to gather `input` of all ranks. Fills `outputs` with the tensors for the results.
  std::function<TorchWork(Tensors& outputs, const at::Tensor& input)> allGather;
  /// Starts to send the tensors `own` to every other rank, and to receive the tensors `others[rank]` from each rank.
  std::function<TorchWork(const Tensors& own, const std::vector<Tensors>& others)> exchange;
};

class SparseSum final : public ::c10d::Work {
 public:
  /// Starts the sum over all ranks. The result will replace the elements of `tensor`. Throws ValueError if the tensor
  /// cannot be communicated.
  static c10::intrusive_ptr<SparseSum> start(const at::Tensor& tensor, SparseLinks links);

  std::vector<at::Tensor> result() override { return {tensor_}; }
  /// Returns a future whose value is a list of one element, the tensor.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }

 private:
  using Tensors = SparseLinks::Tensors;

  SparseSum(const at::Tensor& tensor, SparseLinks links);

  /// The three steps of a sum. Each step starts the next one.
  void gatherMetadata();
  void exchangeElements();
  void addUp();
  /// Runs `step` on a thread for callbacks when `work` is done.
  void then(const SparseLinks::TorchWork& work, void (SparseSum::*step)());
  /// Completes this work, successfully if `failure` is null.
  void end(const std::exception_ptr& failure);

  SparseLinks links_;  ///< dropped when the sum is done
  const at::Tensor tensor_;
  const c10::intrusive_ptr<c10::ivalue::Future> future_;
  at::Tensor own_;                 ///< this rank's tensor, coalesced
  Tensors metadata_;               ///< the result of metadataOf() for each rank's tensor
  std::vector<Tensors> elements_;  ///< for each rank: indices and values
};

}  // namespace agspeed::comm::c10d
