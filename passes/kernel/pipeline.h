// SPDX-License-Identifier: Apache-2.0
// The pipeline of MLIR passes that lowers an emitted kernel to the LLVM dialect.
#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "passes/kernel/funnel.h"

namespace agspeed::passes {

/// An MLIR pass by name.
struct KernelPass {
  std::string_view name;
  std::unique_ptr<mlir::Pass> (*create)();
};

/// All passes, in the order of the pipeline.
std::span<const KernelPass> kernelPasses();

/// Runs all passes on the funnel's module and dumps their timings. Errors: see PassFunnel::run().
Status lowerKernel(PassFunnel& funnel);

}  // namespace agspeed::passes
