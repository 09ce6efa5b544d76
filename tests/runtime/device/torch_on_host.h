// SPDX-License-Identifier: Apache-2.0
// CUDA tensors for torch without a GPU. Their memory is host memory and their operators are the CPU's, even if
// libtorch_cuda has its own. The current stream is the one that was set here. An operator first waits for the work that
// is queued on it, as stream order requires.
#pragma once

#include <ATen/core/Tensor.h>

namespace agspeed::runtime::device {

/// Registers the device. `wait` runs all work that is queued on a stream. It returns nullptr, or the reason if the
/// device is lost; an operator then throws the same error as torch's.
void installTorchOnHost(const char* (*wait)(void* stream));
void setCurrentStream(void* stream);
/// The `after`th next operator runs out of memory, once; -1: none does.
void failOperator(int64_t after);
at::Tensor toCuda(const at::Tensor& tensor);

}  // namespace agspeed::runtime::device
