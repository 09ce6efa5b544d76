// SPDX-License-Identifier: Apache-2.0
// Calls: translates torch's collectives into calls of the communicator, but does not start them. It checks torch's
// arguments and converts torch's tensors to byte ranges. A wrong argument throws ValueError (arguments.h). Thread-safe.
#pragma once

#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <vector>

#include "comm/api.h"
#include "comm/c10d/buffers.h"

namespace agspeed::comm::c10d {

/// A collective that is ready to start.
struct PreparedCall {
  CollectiveCall call;
  ::c10d::OpType type = ::c10d::OpType::UNKNOWN;
  Buffers buffers = {};
  std::vector<at::Tensor> results = {};  ///< tensors that the Work returns as results
};

/// Prepares the calls of one rank of a group. The functions correspond to c10d::Backend's.
class Calls {
 public:
  using Tensors = std::vector<at::Tensor>;

  Calls(int rank, int size) : rank_(rank), size_(size) {}

  PreparedCall broadcast(Tensors& tensors, const ::c10d::BroadcastOptions& options) const;
  PreparedCall allreduce(Tensors& tensors, const ::c10d::AllreduceOptions& options) const;
  PreparedCall reduce(Tensors& tensors, const ::c10d::ReduceOptions& options) const;
  PreparedCall allgather(std::vector<Tensors>& outputs, Tensors& inputs) const;
  PreparedCall allgatherBase(at::Tensor& output, at::Tensor& input) const;
  PreparedCall gather(std::vector<Tensors>& outputs, Tensors& inputs, const ::c10d::GatherOptions& options) const;
  PreparedCall scatter(Tensors& outputs, std::vector<Tensors>& inputs, const ::c10d::ScatterOptions& options) const;
  PreparedCall reduceScatter(Tensors& outputs, std::vector<Tensors>& inputs,
                             const ::c10d::ReduceScatterOptions& options) const;
  PreparedCall reduceScatterBase(at::Tensor& output, at::Tensor& input,
                                 const ::c10d::ReduceScatterOptions& options) const;
  PreparedCall alltoallBase(at::Tensor& output, at::Tensor& input, const std::vector<int64_t>& outputSplits,
                            const std::vector<int64_t>& inputSplits) const;
  PreparedCall alltoall(Tensors& outputs, Tensors& inputs) const;
  PreparedCall barrier() const;

 private:
  int checkedRoot(int64_t root) const;
  /// Checks that there is one tensor per rank. `what` names the tensors in the error.
  void checkOnePerRank(const Tensors& tensors, const char* operation, const char* what) const;

  int rank_;
  int size_;
};

}  // namespace agspeed::comm::c10d
