// SPDX-License-Identifier: Apache-2.0
// Formulas of transcendental functions, for scalars and vectors: straight-line arithmetic with the special cases put
// right by selects (infinities, NaN, signed zero, subnormal inputs and results).
//
// Largest error in units in the last place, measured by tests/compiler/kernel/vector_math_test.cpp:
//
//   f32, computed in f32   exp 1  exp2 1  expm1 2  log 1  log1p 2  tanh 3  erf 2  sin 2  cos 2  tan 4
//   f32, computed in f64   acos acosh asin asinh atan atan2 atanh cosh erfc log2 log10 pow sinh: 1
//   f64                    exp 1  expm1 2  log 1  log1p 2  tanh 3; the other functions call libm
#pragma once

#include "passes/kernel/value_builder.h"

namespace agspeed::passes {

/// A formula of f64 applied to f32: widen, compute, round once.
template <Val (*formula)(Val)>
Val inF64(Val x) {
  return convertFloat(formula(convertFloat(x, x.builder->ops().getF64Type())), x.builder->ops().getF32Type());
}

// f32 and f64.
Val expandExp(Val x);
Val expandExpm1(Val x);
Val expandLog(Val x);
Val expandLog1p(Val x);
Val expandTanh(Val x);

// f32.
Val expandExp2(Val x);
Val expandErf(Val x);
Val expandAtan2(Val y, Val x);
Val expandPow(Val base, Val exponent);
/// Arguments beyond kMaxReducedAngle take a branch that calls libm.
Val expandSin(Val x);
Val expandCos(Val x);
Val expandTan(Val x);

// f64, accurate to f32 only.
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
