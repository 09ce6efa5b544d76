// SPDX-License-Identifier: Apache-2.0
// The MLIR passes of the kernel compiler in order, from emitted kernel to LLVM dialect.
#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "passes/kernel/funnel.h"

namespace agspeed::passes {

struct KernelPass {
  std::string_view name;
  std::unique_ptr<mlir::Pass> (*create)();
};

/// All passes, in the order of the pipeline.
std::span<const KernelPass> kernelPasses();

/// Runs them all on the funnel's module. Errors: see PassFunnel::run().
Status lowerKernel(PassFunnel& funnel);

}  // namespace agspeed::passes
