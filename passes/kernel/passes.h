// SPDX-License-Identifier: Apache-2.0
// The MLIR passes of the kernel compiler; what each needs and leaves is in passes.td.
#pragma once

#include "mlir/Pass/Pass.h"

namespace agspeed::passes {

#define GEN_PASS_DECL
#include "passes/kernel/passes.h.inc"

}  // namespace agspeed::passes
