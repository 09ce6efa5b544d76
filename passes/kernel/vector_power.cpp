// SPDX-License-Identifier: Apache-2.0
// base^exponent = e^(exponent log |base|), with the special cases of pow in C. It is computed in f64, so that the
// product is exact enough.
#include <limits>

#include "passes/kernel/vector_math.h"

namespace agspeed::passes {

using namespace mlir;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Val isInteger(Val x) { return eq(trunc(x), x); }

Val widePow(Val base, Val exponent) {
  ValueBuilder& b = *base.builder;
  Val a = abs(base);
  Val one = b.like(base, 1);
  Val result = expandExp(exponent * expandLog(a));
  // (+-1)^(+-infinity) is 1, but the formula above computes 0 * infinity, which is NaN.
  result = select(eq(a, one) & eq(exponent, exponent), one, result);
  Val isOdd = isInteger(exponent) & ~isInteger(exponent * 0.5);
  result = select(isOdd, copysign(result, base), result);
  Val hasNoRoot = lt(base, 0.0) & gt(base, -kInfinity) & ~isInteger(exponent);
  result = select(hasNoRoot, b.like(base, std::numeric_limits<double>::quiet_NaN()), result);
  return select(eq(exponent, 0.0) | eq(base, one), one, result);
}

}  // namespace

Val expandPow(Val base, Val exponent) {
  Builder& ops = base.builder->ops();
  Val result = widePow(convertFloat(base, ops.getF64Type()), convertFloat(exponent, ops.getF64Type()));
  return convertFloat(result, ops.getF32Type());
}

}  // namespace agspeed::passes
