// SPDX-License-Identifier: Apache-2.0
// Operations as torch's profilers show them: asynchronous events with the shapes of their inputs, named as Gloo's and
// NCCL's are ("agspeed:all_reduce"). Thread-safe.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string_view>

namespace agspeed::comm {

/// Begins the event "agspeed:<name>" where this thread is profiled. Returns: what ends it, to be called once, on any
/// thread; null where nobody profiles.
std::function<void()> beginEvent(std::string_view name, at::TensorList inputs);

}  // namespace agspeed::comm
