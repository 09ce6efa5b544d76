// SPDX-License-Identifier: Apache-2.0
// log and functions that are computed from it. x = 2^k m with m in [sqrt(1/2), sqrt(2)), f = m - 1, and
//   log(1 + f) = f - (h - s (h + R)),  h = f^2 / 2,  s = f / (2 + f),  R = 2 s^2/3 + 2 s^4/5 + ...
// The right side is 2 atanh(s), arranged so that the leading term f is exact.
#include <cmath>
#include <limits>

#include "llvm/ADT/SmallVector.h"
#include "passes/kernel/vector_math.h"

namespace agspeed::passes {

using namespace mlir;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

struct Format {
  int mantissaBits;
  int exponentBias;
  int64_t one;       ///< bits of 1.0
  int64_t sqrtHalf;  ///< bits of sqrt(1/2)
  double minNormal;
  double ln2Hi;  ///< n * ln2Hi is exact for every exponent n
  double ln2Lo;
  int terms;  ///< the number of terms of R
};
constexpr Format kF32 = {23, 127, 0x3f800000, 0x3f3504f3, 0x1p-126, 0.693145751953125, 1.42860682030941723212e-6, 4};
constexpr Format kF64 = {
    52, 1023, 0x3ff0000000000000, 0x3fe6a09e667f3bcd, 0x1p-1022, 6.93147180369123816490e-1, 1.90821492927058770002e-10,
    10};

const Format& formatOf(Val x) { return x.bitWidth() == 32 ? kF32 : kF64; }

Val toFloat(Val integer, Val shape) {
  ValueBuilder& b = *shape.builder;
  return b.wrap(arith::SIToFPOp::create(b.ops(), b.loc(), shape.type(), integer.value));
}

struct Split {
  Val exponent;  ///< k, as a float
  Val mantissa;  ///< m
};

// Splits x into its exponent k and mantissa m. Requires: x is positive and normal. Other values give arbitrary numbers.
Split split(Val x) {
  const Format& format = formatOf(x);
  ValueBuilder& b = *x.builder;
  Val bits = bitcastTo(x, b.ops().getIntegerType(x.bitWidth()));
  auto constant = [&](int64_t value) { return b.integer(bits.type(), value); };
  // This moves the mantissas of one exponent from the interval [1, 2) to [sqrt(1/2), sqrt(2)).
  Val shifted = bits + constant(format.one - format.sqrtHalf);
  Val exponent = shiftRightArithmetic(shifted, constant(format.mantissaBits)) - constant(format.exponentBias);
  Val fraction = shifted & constant((int64_t{1} << format.mantissaBits) - 1);
  return {toFloat(exponent, x), bitcastTo(fraction + constant(format.sqrtHalf), x.elementType())};
}

// k ln2 + log(1 + f) + correction.
Val logOfParts(Val k, Val f, Val correction) {
  const Format& format = formatOf(f);
  ValueBuilder& b = *f.builder;
  SmallVector<double> series;
  for (int term = 1; term <= format.terms; ++term) series.push_back(2.0 / (2 * term + 1));
  Val s = f / (f + 2.0);
  Val z = s * s;
  Val r = z * polynomial(z, series);
  Val h = f * f * 0.5;
  Val small = fma(k, b.like(k, format.ln2Lo), correction);
  return fma(k, b.like(k, format.ln2Hi), f - (h - (s * (h + r) + small)));
}

// Replaces the result if x, the argument of log, is 0, negative, infinite or NaN.
Val withSpecialCases(Val result, Val x) {
  ValueBuilder& b = *x.builder;
  result = select(eq(x, kInfinity), x, result);
  result = select(eq(x, 0.0), b.like(x, -kInfinity), result);
  return select(ge(x, 0.0), result, b.like(x, kNan));
}

}  // namespace

Val expandLog(Val x) {
  const Format& format = formatOf(x);
  ValueBuilder& b = *x.builder;
  double scale = std::ldexp(1.0, format.mantissaBits + 2);
  Val isSubnormal = lt(x, format.minNormal);
  auto [exponent, mantissa] = split(select(isSubnormal, x * scale, x));
  Val k = select(isSubnormal, exponent - (format.mantissaBits + 2.0), exponent);
  return withSpecialCases(logOfParts(k, mantissa - 1.0, b.like(x, 0)), x);
}

// u = 1 + x is rounded and loses c = (1 + x) - u. The correction c / u makes up for the loss. Near 0 (k = 0), f = x is
// exact and needs no correction.
Val expandLog1p(Val x) {
  ValueBuilder& b = *x.builder;
  Val u = x + 1.0;
  auto [k, mantissa] = split(u);
  Val lost = select(gt(k, 0.0), 1.0 - (u - x), x - (u - 1.0)) / u;
  Val isNearZero = eq(k, 0.0);
  Val f = select(isNearZero, x, mantissa - 1.0);
  Val result = withSpecialCases(logOfParts(k, f, select(isNearZero, b.like(x, 0), lost)), u);
  return select(eq(x, 0.0), x, result);
}

Val expandLog2(Val x) { return expandLog(x) * 1.4426950408889634074; }

Val expandLog10(Val x) { return expandLog(x) * 0.43429448190325182765; }

// acosh x = log1p((x - 1) + sqrt(x - 1) sqrt(x + 1)). There are two roots, so that x <= -1 gives NaN.
Val expandAcosh(Val x) {
  Val d = x - 1.0;
  return expandLog1p(d + sqrt(d) * sqrt(x + 1.0));
}

// asinh a = log1p(a + a^2 / (1 + sqrt(1 + a^2))) with a = |x|. The result gets the sign of x.
Val expandAsinh(Val x) {
  Val a = abs(x);
  Val square = a * a;
  Val result = expandLog1p(a + square / (1.0 + sqrt(square + 1.0)));
  return copysign(select(eq(a, kInfinity), a, result), x);
}

// atanh a = log1p(2a / (1 - a)) / 2 with a = |x|. The result gets the sign of x.
Val expandAtanh(Val x) {
  Val a = abs(x);
  return copysign(expandLog1p(2.0 * a / (1.0 - a)) * 0.5, x);
}

}  // namespace agspeed::passes
