// SPDX-License-Identifier: Apache-2.0
#include "comm/c10d/buffers.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>

#include <optional>

namespace agspeed::comm::c10d {
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
  return keep(isDenseOnHost(tensor) ? tensor : denseCopy(tensor));
}

std::span<std::byte> Buffers::write(const at::Tensor& tensor) {
  checkUsable(tensor);
  if (isDenseOnHost(tensor)) return keep(tensor);
  const at::Tensor copy = tensor.is_cpu()
                              ? at::empty(tensor.sizes(), tensor.options().memory_format(at::MemoryFormat::Contiguous))
                              : stagingOf(tensor).reserve(tensor);
  results_.emplace_back(copy, tensor.detach());
  return keep(copy);
}

std::span<std::byte> Buffers::update(const at::Tensor& tensor) {
  checkUsable(tensor);
  if (isDenseOnHost(tensor)) return keep(tensor);
  const at::Tensor copy = denseCopy(tensor);
  results_.emplace_back(copy, tensor.detach());
  return keep(copy);
}

Readiness Buffers::readiness() const {
  if (staging_ == nullptr) return nullptr;
  return [staging = staging_] { return staging->isFetched(); };
}

void Buffers::finish() {
  for (auto& [from, to] : results_) {
    // Set both modes, because this thread may have other ones. Inference mode must match the result's tensor, and
    // autograd must not record the copy.
    const c10::InferenceMode asTheResult(to.is_inference());
    const at::NoGradGuard noGrad;
    if (to.is_cpu()) {
      to.copy_(from);
    } else {
      staging_->deliver(from, to);
    }
  }
  results_.clear();
}

Staging& Buffers::stagingOf(const at::Tensor& tensor) {
  if (staging_ == nullptr) staging_ = std::make_shared<Staging>(tensor.device());
  const at::Device device = staging_->stream().device();
  TORCH_CHECK_VALUE(tensor.device() == device, "agspeed: tensors of one call are on ", device, " and on ",
                    tensor.device(), ": move them to one device");
  return *staging_;
}

at::Tensor Buffers::denseCopy(const at::Tensor& tensor) {
  return tensor.is_cpu() ? tensor.detach().clone(at::MemoryFormat::Contiguous) : stagingOf(tensor).fetch(tensor);
}

std::span<std::byte> Buffers::keep(const at::Tensor& dense) {
  kept_.push_back(dense);
  return {static_cast<std::byte*>(dense.data_ptr()), dense.nbytes()};
}

}  // namespace agspeed::comm::c10d
