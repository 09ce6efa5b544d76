// SPDX-License-Identifier: Apache-2.0
// Tensors by TensorLayout: the conversions between the runtime's plain descriptions and torch's objects.
//
// Stateless functions, safe from any thread. They go below torch's dispatcher and never record autograd history.
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
/// A tensor over memory of the device that somebody else owns and that outlives it.
at::Tensor wrapMemory(const TensorLayout& layout, void* data, c10::Device device = c10::kCPU);
/// A fresh tensor of that layout and the same device with the same values. Requires: same sizes.
at::Tensor copyWithLayout(const at::Tensor& tensor, const TensorLayout& layout);

/// Whether a kernel compiled for `layout` may read the tensor: a plain tensor on this device with this dtype, these
/// sizes and, for dimensions that are walked, these strides.
bool matches(const at::Tensor& tensor, const TensorLayout& layout, c10::Device device = c10::kCPU);
/// As matches, but any strides will do.
bool matchesExceptStrides(const at::Tensor& tensor, const TensorLayout& layout, c10::Device device = c10::kCPU);

/// "f32[8, 64] with strides [64, 1] on cuda:0", for messages.
std::string toString(const TensorLayout& layout, c10::Device device = c10::kCPU);
std::string describe(const at::Tensor& tensor);

}  // namespace agspeed::runtime::aten
