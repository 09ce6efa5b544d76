// SPDX-License-Identifier: Apache-2.0
// emitObject(): MLIR module in the LLVM dialect -> optimised relocatable object for this machine.
#pragma once

#include <string>

#include "mlir/IR/BuiltinOps.h"
#include "runtime/base/status.h"

namespace agspeed::compiler {

/// Bytes of an object file. No fast-math: results are the same whatever the optimiser does.
/// Errors: kInternal when translation or code generation fails.
StatusOr<std::string> emitObject(mlir::ModuleOp module);

}  // namespace agspeed::compiler
