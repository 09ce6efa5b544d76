// SPDX-License-Identifier: Apache-2.0
// cpu: vectorised code for this machine, generated in process by compiler/kernel (MLIR).
#pragma once

#include "backends/backend.h"
#include "compiler/kernel/kernel_library.h"

namespace agspeed::backends::cpu {

inline constexpr Backend kBackend = {"cpu", "vectorised code for this machine", /*computes=*/true, Device::Kind::kCpu,
                                     compiler::buildKernels};

}  // namespace agspeed::backends::cpu
