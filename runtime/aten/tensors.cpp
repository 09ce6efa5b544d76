// SPDX-License-Identifier: Apache-2.0
#include "runtime/aten/tensors.h"
#include "runtime/base/format.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/TensorBody.h>
#include <ATen/ops/empty_strided.h>

#include <array>
#include <utility>

namespace agspeed::runtime::aten {
namespace {

constexpr std::array<std::pair<DType, c10::ScalarType>, 12> kTypes = {{
    {DType::kBool, c10::ScalarType::Bool},
    {DType::kU8, c10::ScalarType::Byte},
    {DType::kI8, c10::ScalarType::Char},
    {DType::kI16, c10::ScalarType::Short},
    {DType::kI32, c10::ScalarType::Int},
    {DType::kI64, c10::ScalarType::Long},
    {DType::kF16, c10::ScalarType::Half},
    {DType::kBF16, c10::ScalarType::BFloat16},
    {DType::kF32, c10::ScalarType::Float},
    {DType::kF64, c10::ScalarType::Double},
    {DType::kC64, c10::ScalarType::ComplexFloat},
    {DType::kC128, c10::ScalarType::ComplexDouble},
}};

std::string join(c10::IntArrayRef values) {
  std::string text;
  for (int64_t value : values) text += formatText("{}{}", text.empty() ? "" : ", ", value);
  return "[" + text + "]";
}

bool sameStrides(c10::IntArrayRef sizes, c10::IntArrayRef strides, const std::vector<int64_t>& expected) {
  for (size_t dim = 0; dim < expected.size(); ++dim) {
    if (strides[dim] != expected[dim] && sizes[dim] > 1) return false;
  }
  return true;
}

}  // namespace

c10::ScalarType scalarTypeOf(DType dtype) {
  static_assert(kTypes[static_cast<size_t>(DType::kC128)].first == DType::kC128, "kTypes is indexed by DType");
  return kTypes[static_cast<size_t>(dtype)].second;
}

std::optional<DType> dtypeOf(c10::ScalarType type) {
  for (const auto& [dtype, scalarType] : kTypes) {
    if (scalarType == type) return dtype;
  }
  return std::nullopt;
}

c10::Device deviceOf(const Device& device) {
  if (device.isHost()) return c10::kCPU;
  return {c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(device.index)};
}

at::Tensor emptyTensor(const TensorLayout& layout, c10::Device device) {
  const c10::ScalarType type = scalarTypeOf(layout.dtype);
  if (device.is_cpu()) return at::Tensor(at::detail::empty_strided_cpu(layout.sizes, layout.strides, type));
  return at::empty_strided(layout.sizes, layout.strides, at::TensorOptions(device).dtype(type));
}

at::Tensor wrapMemory(const TensorLayout& layout, void* data, c10::Device device) {
  c10::Storage storage(c10::Storage::use_byte_size_t(), static_cast<size_t>(layout.bytes), c10::DataPtr(data, device),
                       /*allocator=*/nullptr, /*resizable=*/false);
  const auto key = device.is_cpu() ? c10::DispatchKey::CPU : c10::DispatchKey::CUDA;
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key),
                                                               c10::scalarTypeToTypeMeta(scalarTypeOf(layout.dtype)));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(layout.sizes, layout.strides);
  return tensor;
}

at::Tensor viewOf(const at::Tensor& source, const TensorLayout& layout, int64_t offset) {
  at::Tensor view = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(source.storage()),
                                                             source.key_set(), source.dtype());
  c10::TensorImpl* impl = view.unsafeGetTensorImpl();
  impl->set_storage_offset(source.storage_offset() + offset);
  impl->set_sizes_and_strides(layout.sizes, layout.strides);
  return view;
}

at::Tensor copyWithLayout(const at::Tensor& tensor, const TensorLayout& layout) {
  at::Tensor copy = emptyTensor(layout, tensor.device());
  copy.copy_(tensor);
  return copy;
}

bool matchesExceptStrides(const at::Tensor& tensor, const TensorLayout& layout, c10::Device device) {
  return tensor.defined() && tensor.scalar_type() == scalarTypeOf(layout.dtype) &&
         tensor.sizes() == c10::IntArrayRef(layout.sizes) && tensor.layout() == c10::kStrided &&
         tensor.device() == device;
}

bool matches(const at::Tensor& tensor, const TensorLayout& layout, c10::Device device) {
  return matchesExceptStrides(tensor, layout, device) && !tensor.is_conj() && !tensor.is_neg() &&
         (tensor.strides() == c10::IntArrayRef(layout.strides) || tensor.numel() == 0 ||
          sameStrides(tensor.sizes(), tensor.strides(), layout.strides));
}

std::string toString(const TensorLayout& layout, c10::Device device) {
  return std::string(agspeed::toString(layout.dtype)) + join(layout.sizes) + " with strides " + join(layout.strides) +
         (device.is_cpu() ? "" : " on " + device.str());
}

std::string describe(const at::Tensor& tensor) {
  if (!tensor.defined()) return "no tensor";
  const std::optional<DType> dtype = dtypeOf(tensor.scalar_type());
  const std::string type = dtype ? std::string(agspeed::toString(*dtype)) : c10::toString(tensor.scalar_type());
  if (tensor.layout() != c10::kStrided) return "a sparse " + type + join(tensor.sizes());
  return type + join(tensor.sizes()) + " with strides " + join(tensor.strides()) + " on " + tensor.device().str();
}

}  // namespace agspeed::runtime::aten
