// SPDX-License-Identifier: Apache-2.0
#include "comm/c10d/arguments.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

#include "comm/c10d/buffers.h"

namespace agspeed::comm::c10d {

void raise(const Status& status) {
  if (status.code() == StatusCode::kInvalidArgument) C10_THROW_ERROR(ValueError, status.message());
  C10_THROW_ERROR(DistBackendError, status.message());
}

std::string messageOf(const std::exception& error) {
  const auto* ofTorch = dynamic_cast<const c10::Error*>(&error);
  return ofTorch != nullptr ? ofTorch->what_without_backtrace() : error.what();
}

void checkNotForked(const World& world) {
  TORCH_CHECK_WITH(DistBackendError, !world.isForked(), "agspeed: this process was forked from rank ", world.rank(),
                   " and cannot use its process groups, whose connections belong to the parent: start it by spawn "
                   "instead of fork, or let the parent communicate");
}

at::Tensor& single(std::vector<at::Tensor>& tensors, const char* operation) {
  TORCH_CHECK_VALUE(!tensors.empty(), "agspeed: ", operation, " requires non-empty tensor list");
  TORCH_CHECK_VALUE(tensors.size() == 1, "agspeed: ", operation, " takes one tensor per rank, not ", tensors.size());
  return tensors[0];
}

void checkSameType(const at::Tensor& expected, const at::Tensor& tensor, const char* operation) {
  TORCH_CHECK_VALUE(tensor.scalar_type() == expected.scalar_type(), "agspeed: ", operation,
                    ": invalid tensor type: ", tensor.scalar_type(), " beside ", expected.scalar_type());
}

uint32_t checkedTag(int tag, const char* operation) {
  TORCH_CHECK_VALUE(tag >= 0, "agspeed: ", operation, ": the tag must not be negative, it is ", tag);
  return static_cast<uint32_t>(tag);
}

void checkPaired(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& inputs, const char* operation) {
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "agspeed: ", operation, ": ", outputs.size(), " outputs for ",
                    inputs.size(), " inputs");
}

void checkCount(size_t count, size_t expected, const char* operation, const char* what) {
  TORCH_CHECK_VALUE(count == expected, "agspeed: ", operation, ": ", count, " ", what, " given, ", expected,
                    " are needed, one per rank");
}

void checkParts(const at::Tensor& whole, const at::Tensor& part, int count, const char* operation) {
  checkSameType(part, whole, operation);
  TORCH_CHECK_VALUE(whole.numel() == part.numel() * count, "agspeed: ", operation,
                    ": invalid tensor size: ", whole.numel(), " elements are not ", count, " (ranks) times ",
                    part.numel());
}

at::TensorList firstOf(const std::vector<std::vector<at::Tensor>>& lists) {
  return lists.empty() ? at::TensorList() : at::TensorList(lists[0]);
}

std::vector<int> membersOf(const std::vector<int>& members, const std::vector<int>& ranks) {
  TORCH_CHECK_VALUE(!ranks.empty(), "agspeed: split: a group needs at least one rank");
  std::vector<int> found;
  for (const int rank : ranks) {
    TORCH_CHECK_VALUE(rank >= 0 && rank < std::ssize(members), "agspeed: split: rank ", rank,
                      " is not in this group of ", members.size());
    found.push_back(members[static_cast<size_t>(rank)]);
  }
  return found;
}

void chooseAlgorithm(Plan& plan, const std::string& collective, const std::string& algorithm) {
  const std::span<const Algorithm> all = algorithms();
  std::erase_if(plan.rules, [&](const PlanRule& rule) { return toString(rule.collective) == collective; });
  if (!algorithm.empty()) {
    const auto found = std::find_if(all.begin(), all.end(), [&](const Algorithm& each) {
      return toString(each.collective) == collective && each.name == algorithm;
    });
    TORCH_CHECK_VALUE(found != all.end(), "agspeed: there is no algorithm '", algorithm, "' of ", collective);
    plan.rules.push_back({.collective = found->collective, .algorithm = algorithm});
  }
  plan.isReproducible = std::all_of(plan.rules.begin(), plan.rules.end(), [](const PlanRule& rule) {
    return findAlgorithm(rule.collective, rule.algorithm)->order == Order::kCanonical;
  });
  ++plan.version;
}

void setReduction(CollectiveCall& call, const ::c10d::ReduceOp& op, const at::Tensor& tensor) {
  using Torch = ::c10d::ReduceOp;
  call.dtype = reducibleTypeOf(tensor);
  switch (static_cast<Torch::RedOpType>(op)) {
    case Torch::SUM: call.op = ReduceOp::kSum; return;
    case Torch::AVG: call.op = ReduceOp::kAverage; return;
    case Torch::PRODUCT: call.op = ReduceOp::kProduct; return;
    case Torch::MIN: call.op = ReduceOp::kMin; return;
    case Torch::MAX: call.op = ReduceOp::kMax; return;
    case Torch::BAND: call.op = ReduceOp::kBitAnd; return;
    case Torch::BOR: call.op = ReduceOp::kBitOr; return;
    case Torch::BXOR: call.op = ReduceOp::kBitXor; return;
    case Torch::PREMUL_SUM: {
      const auto* supplement = dynamic_cast<const ::c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
      TORCH_CHECK_VALUE(supplement != nullptr, "agspeed: a premultiplied sum needs its factor");
      call.op = ReduceOp::kPremultipliedSum;
      call.factor =
          supplement->tensor_factor.defined() ? supplement->tensor_factor.item<double>() : supplement->double_factor;
      return;
    }
    default:
      C10_THROW_ERROR(ValueError, "agspeed: this reduce operation is not known; use one of torch.distributed.ReduceOp");
  }
}

BufferList cut(std::span<std::byte> whole, const at::Tensor& tensor, const std::vector<int64_t>& sizes, int count,
               const char* what) {
  const int64_t rows = tensor.dim() == 0 ? 1 : tensor.size(0);
  if (sizes.empty()) {
    TORCH_CHECK_VALUE(rows % count == 0, "agspeed: all_to_all: invalid tensor size: the ", what, " has ", rows,
                      " rows, which ", count, " ranks cannot share equally");
    return splitEvenly(whole, count);
  }
  checkCount(sizes.size(), static_cast<size_t>(count), "all_to_all", "split sizes");
  const int64_t sum = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  TORCH_CHECK_VALUE(sum == rows && *std::min_element(sizes.begin(), sizes.end()) >= 0,
                    "agspeed: all_to_all: invalid tensor size: the split sizes of the ", what, " add up to ", sum,
                    ", it has ", rows, " rows");
  const size_t rowBytes = rows == 0 ? 0 : whole.size() / static_cast<size_t>(rows);
  BufferList chunks;
  size_t offset = 0;
  for (const int64_t size : sizes) {
    chunks.push_back(whole.subspan(offset, static_cast<size_t>(size) * rowBytes));
    offset += chunks.back().size();
  }
  return chunks;
}

}  // namespace agspeed::comm::c10d
