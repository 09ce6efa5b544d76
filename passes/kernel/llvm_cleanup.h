// SPDX-License-Identifier: Apache-2.0
// Translates lowered MLIR to LLVM IR and cleans it up for a code generator. CPUs and GPUs share this code.
// Thread-safety: calls may run concurrently if they share neither a module nor a context.
#pragma once

#include <memory>
#include <string>

#include "mlir/IR/BuiltinOps.h"
#include "runtime/base/status.h"

namespace llvm {
class LLVMContext;
class Module;
class TargetMachine;
}  // namespace llvm

namespace agspeed::passes {

/// Translates a kernel to LLVM IR. Requires: lowerKernel() has run on it. Errors: kInternal.
StatusOr<std::unique_ptr<llvm::Module>> translateKernel(mlir::ModuleOp module, llvm::LLVMContext& context);

/// kKept: operations on vectors stay as they are. kSplit: each becomes one scalar operation per lane.
enum class Vectors : uint8_t { kKept, kSplit };

/// Removes redundant code and moves loop-invariant code out of loops. `machine`: the target whose costs the LLVM passes
/// use; null if they use no target's costs.
void cleanUpKernel(llvm::Module& module, llvm::TargetMachine* machine, Vectors vectors);

/// The text of a module, as in a file "x.ll".
std::string toString(const llvm::Module& module);

}  // namespace agspeed::passes
