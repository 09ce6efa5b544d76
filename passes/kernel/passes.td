// SPDX-License-Identifier: Apache-2.0
// The MLIR passes of the kernel compiler. Each pass has one stem for all its names. Example: file expand_math.cpp, row
// "expand-math" of passes/passes.def, test tests/passes/kernel/expand_math.mlir.
#ifndef AGSPEED_PASSES_KERNEL_PASSES_TD
#define AGSPEED_PASSES_KERNEL_PASSES_TD

include "mlir/Pass/PassBase.td"

def ExpandMathPass : Pass<"expand-math", "mlir::ModuleOp"> {
  let summary = "Replaces transcendental math operations by our own vector code";
  let description = [{
    Before: math operations on f32 or f64, scalar or 1-D vector.
    After: those with a row in expand_math.cpp are arithmetic (arith, math.fma, math.sqrt, ...); the rest are unchanged
    and need math-to-libm. A scalar gets the same formula as a vector, so a value does not depend on the lane it is
    computed in. Errors are listed in passes/kernel/vector_math.h.
  }];
  let dependentDialects = ["mlir::arith::ArithDialect", "mlir::math::MathDialect", "mlir::scf::SCFDialect",
                           "mlir::vector::VectorDialect"];
}

def LowerToLLVMPass : Pass<"lower-to-llvm", "mlir::ModuleOp"> {
  let summary = "Converts a kernel module to the LLVM dialect in one conversion";
  let description = [{
    Before: func, scf, cf, arith, vector and llvm operations, and the math operations that are LLVM intrinsics or x86
    instructions (fma, sqrt, floor, ...).
    After: only the LLVM dialect. Fails on any operation that has no lowering.
  }];
  let dependentDialects = ["mlir::LLVM::LLVMDialect"];
}

def MathToLibmPass : Pass<"math-to-libm", "mlir::ModuleOp"> {
  let summary = "Calls libm for the transcendental math operations that are left, lane by lane";
  let description = [{
    Before: math operations on f32 or f64, scalar or 1-D vector.
    After: no transcendental math operation; one func.call per scalar, a loop over the lanes per vector.
  }];
  let dependentDialects = ["mlir::arith::ArithDialect", "mlir::func::FuncDialect", "mlir::scf::SCFDialect",
                           "mlir::vector::VectorDialect"];
}

#endif  // AGSPEED_PASSES_KERNEL_PASSES_TD
