// SPDX-License-Identifier: Apache-2.0
// Shows operations in torch's profilers: asynchronous events with the shapes of their inputs, named like Gloo's and
// NCCL's ("agspeed:all_reduce"). Thread-safe.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string_view>

namespace agspeed::comm::c10d {

/// Begins the event "agspeed:<name>" if this thread is profiled. Returns a function that ends the event, or null if the
/// thread is not profiled. Call the returned function once, on any thread.
std::function<void()> beginEvent(std::string_view name, at::TensorList inputs);

}  // namespace agspeed::comm::c10d
