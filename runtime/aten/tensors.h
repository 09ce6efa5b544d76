// SPDX-License-Identifier: Apache-2.0
// Converts between the runtime's plain descriptions (TensorLayout) and torch's tensors.
//
// Stateless functions, safe from any thread. They run below torch's dispatcher and never record autograd history.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>

#include "runtime/base/device.h"
#include "runtime/resolved_program.h"

namespace agspeed::runtime::aten {

c10::ScalarType scalarTypeOf(DType dtype);
/// nullopt for types that Programs do not know (quantized, float8, ...).
std::optional<DType> dtypeOf(c10::ScalarType type);

c10::Device deviceOf(const Device& device);

/// Uninitialised memory of torch's allocator for the device: on a GPU the caching one, on the current stream.
at::Tensor emptyTensor(const TensorLayout& layout, c10::Device device = c10::kCPU);
/// A tensor over device memory that another object owns; the memory outlives the tensor.
at::Tensor wrapMemory(const TensorLayout& layout, void* data, c10::Device device = c10::kCPU);
/// A tensor of that layout in the memory of `source`, which begins `offset` elements behind the source's first one.
/// Requires: the source's dtype is the layout's.
at::Tensor viewOf(const at::Tensor& source, const TensorLayout& layout, int64_t offset);
/// A new tensor of that layout, on the same device, with the same values. Requires: same sizes.
at::Tensor copyWithLayout(const at::Tensor& tensor, const TensorLayout& layout);

/// Whether a kernel compiled for `layout` may read the tensor. It has to be a plain tensor on this device with this
/// dtype and these sizes. Its strides have to match in dimensions with more than one element.
bool matches(const at::Tensor& tensor, const TensorLayout& layout, c10::Device device = c10::kCPU);
/// See matches(), but any strides are allowed.
bool matchesExceptStrides(const at::Tensor& tensor, const TensorLayout& layout, c10::Device device = c10::kCPU);

/// "f32[8, 64] with strides [64, 1] on cuda:0", for messages.
std::string toString(const TensorLayout& layout, c10::Device device = c10::kCPU);
std::string describe(const at::Tensor& tensor);

}  // namespace agspeed::runtime::aten
