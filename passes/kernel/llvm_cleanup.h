// SPDX-License-Identifier: Apache-2.0
// From lowered MLIR to LLVM IR that a code generator takes, the same for CPUs and GPUs. Thread-safe: functions of a
// module and its contexts.
#pragma once

#include <memory>

#include "mlir/IR/BuiltinOps.h"
#include "runtime/base/status.h"

namespace llvm {
class LLVMContext;
class Module;
class TargetMachine;
}  // namespace llvm

namespace agspeed::passes {

/// Before: lowerKernel(). Errors: kInternal.
StatusOr<std::unique_ptr<llvm::Module>> translateKernel(mlir::ModuleOp module, llvm::LLVMContext& context);

/// Whether operations on vectors stay, or become one for each lane.
enum class Vectors : uint8_t { kKept, kSplit };

/// Cleans up and moves what is the same for all turns out of loops. `machine`: whose costs count; null: no one's.
void cleanUpKernel(llvm::Module& module, llvm::TargetMachine* machine, Vectors vectors);

}  // namespace agspeed::passes
