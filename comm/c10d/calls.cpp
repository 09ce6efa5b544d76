// SPDX-License-Identifier: Apache-2.0
#include "comm/c10d/calls.h"

#include <utility>

#include "comm/c10d/arguments.h"

namespace agspeed::comm::c10d {
namespace {

using ::c10d::OpType;

/// Calls `use` (Buffers::read or Buffers::write) for each tensor, and returns the bytes of all tensors. All must have
/// the type of `like`.
BufferList chunks(Buffers& buffers, std::span<std::byte> (Buffers::*use)(const at::Tensor&),
                  const std::vector<at::Tensor>& tensors, const at::Tensor& like, const char* operation) {
  BufferList result;
  for (const at::Tensor& tensor : tensors) {
    checkSameType(like, tensor, operation);
    result.push_back((buffers.*use)(tensor));
  }
  return result;
}

}  // namespace

PreparedCall Calls::broadcast(Tensors& tensors, const ::c10d::BroadcastOptions& options) const {
  const at::Tensor& tensor = single(tensors, "broadcast");
  Buffers buffers;
  CollectiveCall call{.collective = Collective::kBroadcast, .dtype = movableTypeOf(tensor)};
  call.root = checkedRoot(options.rootRank);
  const bool isRoot = call.root == rank_;
  const std::span<std::byte> bytes = isRoot ? buffers.read(tensor) : buffers.write(tensor);
  if (isRoot) call.input = {bytes};
  call.output = {bytes};
  return {std::move(call), OpType::BROADCAST, std::move(buffers), tensors};
}

PreparedCall Calls::allreduce(Tensors& tensors, const ::c10d::AllreduceOptions& options) const {
  const at::Tensor& tensor = single(tensors, "allreduce");
  Buffers buffers;
  CollectiveCall call{.collective = Collective::kAllReduce};
  setReduction(call, options.reduceOp, tensor);
  call.input = call.output = {buffers.update(tensor)};
  return {std::move(call), OpType::ALLREDUCE, std::move(buffers), tensors};
}

PreparedCall Calls::reduce(Tensors& tensors, const ::c10d::ReduceOptions& options) const {
  const at::Tensor& tensor = single(tensors, "reduce");
  Buffers buffers;
  CollectiveCall call{.collective = Collective::kReduce};
  setReduction(call, options.reduceOp, tensor);
  call.root = checkedRoot(options.rootRank);
  const bool isRoot = call.root == rank_;
  call.input = {isRoot ? buffers.update(tensor) : buffers.read(tensor)};
  if (isRoot) call.output = call.input;
  return {std::move(call), OpType::REDUCE, std::move(buffers), tensors};
}

PreparedCall Calls::allgather(std::vector<Tensors>& outputs, Tensors& inputs) const {
  const at::Tensor& input = single(inputs, "allgather");
  TORCH_CHECK_VALUE(outputs.size() == 1, "agspeed: allgather takes one list of outputs, not ", outputs.size());
  checkOnePerRank(outputs[0], "allgather", "outputs");
  Buffers buffers;
  CollectiveCall call{.collective = Collective::kAllGather, .dtype = movableTypeOf(input)};
  call.input = {buffers.read(input)};
  call.output = chunks(buffers, &Buffers::write, outputs[0], input, "allgather");
  return {std::move(call), OpType::ALLGATHER, std::move(buffers), outputs[0]};
}

PreparedCall Calls::allgatherBase(at::Tensor& output, at::Tensor& input) const {
  checkParts(output, input, size_, "all_gather_into_tensor");
  Buffers buffers;
  CollectiveCall call{.collective = Collective::kAllGather, .dtype = movableTypeOf(input), .isContiguous = true};
  call.output = splitEvenly(buffers.write(output), size_);
  call.input = {buffers.read(input)};
  return {std::move(call), OpType::_ALLGATHER_BASE, std::move(buffers), {output}};
}

PreparedCall Calls::gather(std::vector<Tensors>& outputs, Tensors& inputs, const ::c10d::GatherOptions& options) const {
  const at::Tensor& input = single(inputs, "gather");
  Buffers buffers;
  CollectiveCall call{.collective = Collective::kGather, .dtype = movableTypeOf(input)};
  call.root = checkedRoot(options.rootRank);
  call.input = {buffers.read(input)};
  if (call.root != rank_) {
    TORCH_CHECK_VALUE(outputs.empty(), "agspeed: gather: requires empty output on non-root");
    return {std::move(call), OpType::GATHER, std::move(buffers)};
  }
  TORCH_CHECK_VALUE(outputs.size() == 1, "agspeed: gather takes one list of outputs at the root, not ", outputs.size());
  checkOnePerRank(outputs[0], "gather", "outputs");
  call.output = chunks(buffers, &Buffers::write, outputs[0], input, "gather");
  return {std::move(call), OpType::GATHER, std::move(buffers), outputs[0]};
}

PreparedCall Calls::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                            const ::c10d::ScatterOptions& options) const {
  const at::Tensor& output = single(outputs, "scatter");
  Buffers buffers;
  CollectiveCall call{.collective = Collective::kScatter, .dtype = movableTypeOf(output)};
  call.root = checkedRoot(options.rootRank);
  call.output = {buffers.write(output)};
  if (call.root == rank_) {
    TORCH_CHECK_VALUE(inputs.size() == 1, "agspeed: scatter takes one list of inputs at the root, not ", inputs.size());
    checkOnePerRank(inputs[0], "scatter", "inputs");
    call.input = chunks(buffers, &Buffers::read, inputs[0], output, "scatter");
  } else {
    TORCH_CHECK_VALUE(inputs.empty(), "agspeed: scatter: requires empty input on non-root");
  }
  return {std::move(call), OpType::SCATTER, std::move(buffers), outputs};
}

PreparedCall Calls::reduceScatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                  const ::c10d::ReduceScatterOptions& options) const {
  const at::Tensor& output = single(outputs, "reduce_scatter");
  TORCH_CHECK_VALUE(inputs.size() == 1, "agspeed: reduce_scatter takes one list of inputs, not ", inputs.size());
  checkOnePerRank(inputs[0], "reduce_scatter", "inputs");
  Buffers buffers;
  CollectiveCall call{.collective = Collective::kReduceScatter};
  setReduction(call, options.reduceOp, output);
  call.input = chunks(buffers, &Buffers::read, inputs[0], output, "reduce_scatter");
  call.output = {buffers.write(output)};
  return {std::move(call), OpType::REDUCE_SCATTER, std::move(buffers), outputs};
}

PreparedCall Calls::reduceScatterBase(at::Tensor& output, at::Tensor& input,
                                      const ::c10d::ReduceScatterOptions& options) const {
  checkParts(input, output, size_, "reduce_scatter_tensor");
  Buffers buffers;
  CollectiveCall call{.collective = Collective::kReduceScatter, .isContiguous = true};
  setReduction(call, options.reduceOp, output);
  call.input = splitEvenly(buffers.read(input), size_);
  call.output = {buffers.write(output)};
  return {std::move(call), OpType::_REDUCE_SCATTER_BASE, std::move(buffers), {output}};
}

PreparedCall Calls::alltoallBase(at::Tensor& output, at::Tensor& input, const std::vector<int64_t>& outputSplits,
                                 const std::vector<int64_t>& inputSplits) const {
  checkSameType(input, output, "all_to_all");
  Buffers buffers;
  CollectiveCall call{.collective = Collective::kAllToAll, .dtype = movableTypeOf(input)};
  call.input = cut(buffers.read(input), input, inputSplits, size_, "input");
  call.output = cut(buffers.write(output), output, outputSplits, size_, "output");
  return {std::move(call), OpType::ALLTOALL_BASE, std::move(buffers), {output}};
}

PreparedCall Calls::alltoall(Tensors& outputs, Tensors& inputs) const {
  checkOnePerRank(inputs, "all_to_all", "inputs");
  checkOnePerRank(outputs, "all_to_all", "outputs");
  Buffers buffers;
  CollectiveCall call{.collective = Collective::kAllToAll, .dtype = movableTypeOf(inputs[0])};
  call.input = chunks(buffers, &Buffers::read, inputs, inputs[0], "all_to_all");
  call.output = chunks(buffers, &Buffers::write, outputs, inputs[0], "all_to_all");
  return {std::move(call), OpType::ALLTOALL, std::move(buffers), outputs};
}

PreparedCall Calls::barrier() const { return {{.collective = Collective::kBarrier}, OpType::BARRIER}; }

int Calls::checkedRoot(int64_t root) const {
  TORCH_CHECK_VALUE(root >= 0 && root < size_, "agspeed: invalid root rank: ", root, " in a group of ", size_);
  return static_cast<int>(root);
}

void Calls::checkOnePerRank(const Tensors& tensors, const char* operation, const char* what) const {
  checkCount(tensors.size(), static_cast<size_t>(size_), operation, what);
}

}  // namespace agspeed::comm::c10d
