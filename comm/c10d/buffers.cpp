// SPDX-License-Identifier: Apache-2.0
#include "comm/c10d/buffers.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include <optional>

namespace agspeed::comm {
namespace {

std::optional<DType> typeOf(at::ScalarType type) {
  switch (type) {
    case at::kBool: return DType::kBool;
    case at::kByte: return DType::kU8;
    case at::kChar: return DType::kI8;
    case at::kShort: return DType::kI16;
    case at::kInt: return DType::kI32;
    case at::kLong: return DType::kI64;
    case at::kHalf: return DType::kF16;
    case at::kBFloat16: return DType::kBF16;
    case at::kFloat: return DType::kF32;
    case at::kDouble: return DType::kF64;
    default: return std::nullopt;
  }
}

bool isDenseOnHost(const at::Tensor& tensor) { return tensor.device().is_cpu() && tensor.is_contiguous(); }

void checkUsable(const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(tensor.layout() == at::kStrided, "agspeed: invalid tensor layout ", tensor.layout(),
                    ": only strided tensors can be communicated; call to_dense() first");
}

at::Tensor hostCopy(const at::Tensor& tensor) {
  return tensor.detach().to(at::kCPU, tensor.scalar_type(), /*non_blocking=*/false, /*copy=*/true,
                            at::MemoryFormat::Contiguous);
}

}  // namespace

DType reducibleTypeOf(const at::Tensor& tensor) {
  const std::optional<DType> type = typeOf(tensor.scalar_type());
  TORCH_CHECK_VALUE(type.has_value(), "agspeed: invalid tensor type ", tensor.scalar_type(),
                    ": its elements cannot be reduced; convert the tensor first");
  return *type;
}

DType movableTypeOf(const at::Tensor& tensor) { return typeOf(tensor.scalar_type()).value_or(DType::kU8); }

std::span<std::byte> Buffers::read(const at::Tensor& tensor) {
  checkUsable(tensor);
  return keep(isDenseOnHost(tensor) ? tensor : hostCopy(tensor));
}

std::span<std::byte> Buffers::write(const at::Tensor& tensor) {
  checkUsable(tensor);
  if (isDenseOnHost(tensor)) return keep(tensor);
  const at::Tensor copy =
      at::empty(tensor.sizes(), tensor.options().device(at::kCPU).memory_format(at::MemoryFormat::Contiguous));
  results_.emplace_back(copy, tensor.detach());
  return keep(copy);
}

std::span<std::byte> Buffers::update(const at::Tensor& tensor) {
  checkUsable(tensor);
  if (isDenseOnHost(tensor)) return keep(tensor);
  const at::Tensor copy = hostCopy(tensor);
  results_.emplace_back(copy, tensor.detach());
  return keep(copy);
}

void Buffers::finish() {
  const at::NoGradGuard noGrad;
  for (auto& [from, to] : results_) to.copy_(from);
  results_.clear();
}

std::span<std::byte> Buffers::keep(const at::Tensor& dense) {
  kept_.push_back(dense);
  return {static_cast<std::byte*>(dense.data_ptr()), dense.nbytes()};
}

}  // namespace agspeed::comm
