// SPDX-License-Identifier: Apache-2.0
#include "passes/kernel/pipeline.h"

#include "passes/kernel/passes.h"

namespace agspeed::compiler {

const std::vector<KernelPass>& kernelPasses() {
  static const std::vector<KernelPass> passes = {
      // Vector code for the functions we have formulas for; disabled, everything below still works, through libm.
      {"expand-math", passes::createExpandMathPass},
      // What is left of them becomes calls, lane by lane.
      {"math-to-libm", passes::createMathToLibmPass},
      // One conversion of everything else.
      {"lower-to-llvm", passes::createLowerToLLVMPass},
  };
  return passes;
}

Status lowerKernel(mlir::ModuleOp module, PassFunnel& funnel) {
  for (const KernelPass& pass : kernelPasses()) AG_RETURN_IF_ERROR(funnel.run(pass.name, module, pass.create()));
  return {};
}

}  // namespace agspeed::compiler
