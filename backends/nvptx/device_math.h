// SPDX-License-Identifier: Apache-2.0
// Code for functions that the pass expand-math leaves to libm on a CPU. A GPU has no libm, and no device library is
// linked.
//
//   sin, cos, tan of large f32   x modulo pi/2 by the digits of 2/pi that matter (Payne and Hanek, "Radian reduction
//                                for trigonometric functions", 1983); error below 1 ulp
//   remf of f32 and f64          exact: subtracts multiples of the divisor, 50 binary digits per step
//
// Other functions, f64 functions without a formula, are refused.
#pragma once

#include <memory>

#include "mlir/IR/BuiltinOps.h"
#include "mlir/Pass/Pass.h"
#include "runtime/base/status.h"

namespace agspeed::backends::nvptx {

/// Splits operations that will become formulas into one per lane, so that a thread runs one formula at a time and needs
/// the registers of only one. Run it before expand-math.
std::unique_ptr<mlir::Pass> createSplitMathPass();

/// Replaces the operations above. Run it after expand-math.
std::unique_ptr<mlir::Pass> createDeviceMathPass();

/// Errors: kUnsupported naming the first operation that would need a library.
Status checkDeviceMath(mlir::ModuleOp module);

}  // namespace agspeed::backends::nvptx
