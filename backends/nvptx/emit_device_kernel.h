// SPDX-License-Identifier: Apache-2.0
// emitDeviceKernel(): Cluster -> MLIR module with a function per entry of its plan, `void name(ptr parameter)`, in the
// func, scf, arith, math, vector and llvm dialects. Threads, shuffles and barriers are calls of llvm.nvvm intrinsics,
// operands are pointers to address space 1, shared memory is a global of address space 3.
#pragma once

#include <string>

#include "backends/nvptx/kernel_plan.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/OwningOpRef.h"

namespace agspeed::backends::nvptx {

/// Requires: compiler::loadKernelDialects(context), and the cluster's plan.
/// Errors: kUnsupported if the generator lacks an operation or dtype (named).
StatusOr<mlir::OwningOpRef<mlir::ModuleOp>> emitDeviceKernel(mlir::MLIRContext& context,
                                                             const compiler::Cluster& cluster, const KernelPlan& plan,
                                                             const std::string& symbol);

}  // namespace agspeed::backends::nvptx
