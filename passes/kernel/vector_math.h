// SPDX-License-Identifier: Apache-2.0
// Formulas of transcendental functions, for scalars and vectors. They are straight-line arithmetic. Selects correct the
// special cases: infinities, NaN, signed zero, subnormal inputs and results. Only sin, cos and tan have a branch.
//
// The largest error in units in the last place, measured by tests/compiler/kernel/vector_math_test.cpp ("f32, in f64":
// functions of f32 that are computed in f64):
//
//   f32, in f32 | cos 1.5  erf 1.0  exp 0.9  exp2 0.9  expm1 1.3  log 0.8  log1p 2.0  sin 1.5  tan 3.1  tanh 2.5
//   f32, in f64 | acos acosh asin asinh atan atan2 atanh cosh erfc log10 log2 pow sinh: 0.51
//   f64         | exp 0.9  expm1 1.8  log 0.8  log1p 1.9  tanh 2.5; the other functions call libm
#pragma once

#include "passes/kernel/value_builder.h"

namespace agspeed::passes {

/// Applies a formula for f64 to f32: widens, computes and rounds once.
template <Val (*formula)(Val)>
Val inF64(Val x) {
  return convertFloat(formula(convertFloat(x, x.builder->ops().getF64Type())), x.builder->ops().getF32Type());
}

// For f32 and f64.
Val expandExp(Val x);
Val expandExpm1(Val x);
Val expandLog(Val x);
Val expandLog1p(Val x);
Val expandTanh(Val x);

// For f32.
Val expandExp2(Val x);
Val expandErf(Val x);
Val expandAtan2(Val y, Val x);
Val expandPow(Val base, Val exponent);
/// In sin, cos and tan, large arguments (vector_trig.cpp: kMaxReducedAngle) take a branch that calls libm.
Val expandSin(Val x);
Val expandCos(Val x);
Val expandTan(Val x);

// For f64. The results are accurate enough for f32 only.
Val expandAcos(Val x);
Val expandAcosh(Val x);
Val expandAsin(Val x);
Val expandAsinh(Val x);
Val expandAtan(Val x);
Val expandAtanh(Val x);
Val expandCosh(Val x);
Val expandErfc(Val x);
Val expandLog10(Val x);
Val expandLog2(Val x);
Val expandSinh(Val x);
/// atan2 of f64 values.
Val wideAtan2(Val y, Val x);

}  // namespace agspeed::passes
