// SPDX-License-Identifier: Apache-2.0
// Cluster -> LLVM IR of its GPU kernels, optimised and not yet for a target. ptx.h compiles it to PTX, tests compile it
// for the host.
#pragma once

#include <memory>
#include <string>

#include "compiler/graph/cluster.h"
#include "compiler/options.h"
#include "runtime/base/status.h"

namespace llvm {
class LLVMContext;
class Module;
}  // namespace llvm

namespace agspeed::backends::nvptx {

/// A function `void name(ptr)` per entry of the cluster's plan, named by entryName(). Thread-safe.
/// Errors: kUnsupported for a shape, operation or dtype without GPU code (named), kInternal otherwise.
StatusOr<std::unique_ptr<llvm::Module>> emitDeviceModule(llvm::LLVMContext& context, const compiler::Cluster& cluster,
                                                         const std::string& symbol,
                                                         const compiler::CompileOptions& options);

}  // namespace agspeed::backends::nvptx
