// SPDX-License-Identifier: Apache-2.0
// The MLIR passes of the kernel compiler in order, from emitted kernel to LLVM dialect.
#pragma once

#include <string>
#include <vector>

#include "passes/kernel/funnel.h"

namespace agspeed::compiler {

struct KernelPass {
  std::string name;  ///< as in KernelOptions::disabledPasses
  std::unique_ptr<mlir::Pass> (*create)();
};

/// All passes, in the order of the pipeline.
const std::vector<KernelPass>& kernelPasses();

/// Runs them all. Errors: see PassFunnel::run().
Status lowerKernel(mlir::ModuleOp module, PassFunnel& funnel);

}  // namespace agspeed::compiler
