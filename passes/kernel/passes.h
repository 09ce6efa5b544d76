// SPDX-License-Identifier: Apache-2.0
// The MLIR passes of the kernel compiler. passes.td describes the input and the result of each pass.
#pragma once

#include "mlir/Pass/Pass.h"

namespace agspeed::passes {

#define GEN_PASS_DECL
#include "passes/kernel/passes.h.inc"

}  // namespace agspeed::passes
