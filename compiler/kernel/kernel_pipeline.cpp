// SPDX-License-Identifier: Apache-2.0
#include "compiler/kernel/kernel_pipeline.h"

#include "passes/kernel/passes.h"

namespace agspeed::compiler {

Status lowerKernel(mlir::ModuleOp module, PassFunnel& funnel) {
  // Vector code for the functions we have formulas for; disabled, everything below still works, through libm.
  AG_RETURN_IF_ERROR(funnel.run("expand-math", module, passes::createExpandMathPass()));
  // What is left of them becomes calls, lane by lane.
  AG_RETURN_IF_ERROR(funnel.run("math-to-libm", module, passes::createMathToLibmPass()));
  // One conversion of everything else.
  return funnel.run("lower-to-llvm", module, passes::createLowerToLLVMPass());
}

}  // namespace agspeed::compiler
