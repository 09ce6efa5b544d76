// SPDX-License-Identifier: Apache-2.0
// Runs slices of a kernel launch on torch's intra-op threads. It is a file of its own because torch's header is inlined
// and needs OpenMP wherever it is compiled. Blocks until all slices are done; as thread-safe as at::parallel_for.
#pragma once

#include <cstdint>

#include "runtime/tensor_backend.h"

namespace agspeed::runtime::aten {

/// Runs `launch` over [0, extent) in slices of at least `grain`.
void runInSlices(int64_t extent, int64_t grain, const KernelLaunch& launch);

}  // namespace agspeed::runtime::aten
