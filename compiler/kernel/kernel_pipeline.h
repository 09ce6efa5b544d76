// SPDX-License-Identifier: Apache-2.0
// lowerKernel(): the MLIR passes of the kernel compiler in order, from emitted kernel to LLVM dialect.
#pragma once

#include "compiler/kernel/pass_funnel.h"

namespace agspeed::compiler {

Status lowerKernel(mlir::ModuleOp module, PassFunnel& funnel);

}  // namespace agspeed::compiler
