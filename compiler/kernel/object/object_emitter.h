// SPDX-License-Identifier: Apache-2.0
// emitObject(): MLIR module in the LLVM dialect -> optimised relocatable object for this machine.
#pragma once

#include <string>

#include "mlir/IR/BuiltinOps.h"
#include "passes/kernel/funnel.h"
#include "runtime/base/status.h"

namespace agspeed::compiler {

/// Returns the bytes of an object file. There is no fast-math, so the optimiser does not change results. Dumps LLVM IR
/// ("ll"), assembly ("s") and the object ("o") through `funnel`, the kernel's own.
/// Errors: kInternal if translation or code generation fails.
StatusOr<std::string> emitObject(mlir::ModuleOp module, const passes::PassFunnel& funnel);

}  // namespace agspeed::compiler
