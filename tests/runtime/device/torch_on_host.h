// SPDX-License-Identifier: Apache-2.0
// CUDA tensors for torch without a GPU: their memory is the host's, their operators are the CPU's, also where
// libtorch_cuda brings its own.
// The current stream is whatever was set here; an operator first waits for what is queued on it, as the stream's order
// asks for.
#pragma once

#include <ATen/core/Tensor.h>

namespace agspeed::runtime::device {

/// Registers the device. `wait`: runs all that is queued on a stream, and returns why the device is lost, or
/// nullptr. An operator then throws what torch's own do.
void installTorchOnHost(const char* (*wait)(void* stream));
void setCurrentStream(void* stream);
/// The `after`th next operator finds no memory, once; -1: none does.
void failOperator(int64_t after);
at::Tensor toCuda(const at::Tensor& tensor);

}  // namespace agspeed::runtime::device
