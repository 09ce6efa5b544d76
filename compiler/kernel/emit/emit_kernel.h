// SPDX-License-Identifier: Apache-2.0
// emitKernel(): Cluster -> MLIR module with one function, `void name(ptr pointers, ptr integers, i64 begin, i64 end)`,
// in the func, scf, arith, math, vector and llvm (pointers only) dialects. No memrefs, so no bufferization.
#pragma once

#include <string>

#include "compiler/graph/cluster.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/OwningOpRef.h"

namespace agspeed::compiler {

/// Loads the dialects that kernels and their passes use. Requires: called before emitKernel on a fresh context.
void loadKernelDialects(mlir::MLIRContext& context);

/// Errors: kUnsupported if the generator lacks an operation, dtype or shape (named).
StatusOr<mlir::OwningOpRef<mlir::ModuleOp>> emitKernel(mlir::MLIRContext& context, const Cluster& cluster,
                                                       const std::string& name);

}  // namespace agspeed::compiler
