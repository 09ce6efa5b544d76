// SPDX-License-Identifier: Apache-2.0
// exp and functions that are computed from it. x is reduced to n ln2 + r with |r| <= ln2 / 2, so that e^x = 2^n e^r.
// The Taylor series gives e^r: 8 terms for f32 (error 5e-9), 14 terms for f64 (error 4e-18).
#include <cmath>

#include "llvm/ADT/SmallVector.h"
#include "passes/kernel/vector_math.h"

namespace agspeed::passes {

using namespace mlir;

namespace {

constexpr double kLn2 = 0.69314718055994530942;

/// The constants that differ between f32 and f64.
struct Format {
  int mantissaBits;
  int exponentBias;
  double roundingMagic;  ///< 1.5 * 2^mantissaBits; adding it rounds to an integer, which is then in the low bits
  double ln2Hi;          ///< n * ln2Hi is exact for every exponent n
  double ln2Lo;
  double overflow;    ///< exp is infinite for arguments from here on
  double underflow;   ///< exp is zero for arguments up to here
  double saturation;  ///< expm1 is -1 for arguments up to here
  int terms;
};
constexpr Format kF32 = {23, 127, 12582912.0, 0.693145751953125, 1.42860682030941723212e-6, 89, -104, -20, 8};
constexpr Format kF64 = {
    52, 1023, 6755399441055744.0, 6.93147180369123816490e-1, 1.90821492927058770002e-10, 710, -746, -40, 14};

const Format& formatOf(Val x) { return x.bitWidth() == 32 ? kF32 : kF64; }
Type integerOf(Val x) { return x.builder->ops().getIntegerType(x.bitWidth()); }

struct Rounded {
  Val number;   ///< the nearest integer, as a float
  Val integer;  ///< the same number as an integer; arbitrary for NaN
};

Rounded roundSmall(Val x) {
  const Format& format = formatOf(x);
  Val magic = x.builder->like(x, format.roundingMagic);
  Val shifted = x + magic;
  return {shifted - magic, bitcastTo(shifted, integerOf(x)) - bitcastTo(magic, integerOf(x))};
}

// Limits x to the range from low to high. NaN stays NaN.
Val clamp(Val x, double low, double high) {
  Val lowest = x.builder->like(x, low);
  Val highest = x.builder->like(x, high);
  x = select(lt(x, lowest), lowest, x);
  return select(gt(x, highest), highest, x);
}

// 2^n in the element type of `shape`. Requires: the result is a normal number.
Val powerOfTwo(Val n, Val shape) {
  const Format& format = formatOf(shape);
  ValueBuilder& b = *n.builder;
  return bitcastTo(shiftLeft(n + b.like(n, format.exponentBias), b.like(n, format.mantissaBits)), shape.elementType());
}

// x * 2^n in two steps, each by an exact power of two, with one rounding. The result is right even if 2^n alone would
// overflow or be subnormal.
Val scale(Val x, Val n) {
  Val half = shiftRightArithmetic(n, n.builder->like(n, 1));
  return x * powerOfTwo(half, x) * powerOfTwo(n - half, x);
}

// The coefficients base^k / k! for k = first ... terms - 1.
SmallVector<double> seriesOfExp(int first, int terms, double base = 1) {
  SmallVector<double> coefficients;
  double coefficient = 1;
  for (int k = 0; k < terms; ++k) {
    if (k > 0) coefficient *= base / k;
    if (k >= first) coefficients.push_back(coefficient);
  }
  return coefficients;
}

struct Reduced {
  Rounded n;
  Val r;
};

Reduced reduceByLn2(Val x) {
  const Format& format = formatOf(x);
  ValueBuilder& b = *x.builder;
  Rounded n = roundSmall(x * (1 / kLn2));
  Val r = fma(-n.number, b.like(x, format.ln2Hi), x);
  return {n, fma(-n.number, b.like(x, format.ln2Lo), r)};
}

}  // namespace

Val expandExp(Val x) {
  const Format& format = formatOf(x);
  auto [n, r] = reduceByLn2(clamp(x, format.underflow, format.overflow));
  return scale(polynomial(r, seriesOfExp(0, format.terms)), n.integer);
}

Val expandExp2(Val x) {
  const Format& format = formatOf(x);
  Val clamped = clamp(x, format.underflow / kLn2 - 1, format.overflow / kLn2 + 1);
  Rounded n = roundSmall(clamped);
  return scale(polynomial(clamped - n.number, seriesOfExp(0, format.terms, kLn2)), n.integer);
}

// e^x - 1 = 2^n (e^r - 1) + (2^n - 1). The code computes half the sum and doubles it, so that 2^n does not overflow
// before the sum does.
Val expandExpm1(Val x) {
  const Format& format = formatOf(x);
  ValueBuilder& b = *x.builder;
  auto [n, r] = reduceByLn2(clamp(x, format.saturation, format.overflow));
  Val small = fma(r * r, polynomial(r, seriesOfExp(2, format.terms + 1)), r);
  Val half = powerOfTwo(n.integer - b.like(n.integer, 1), x);
  Val large = fma(half, small, half - 0.5) * 2.0;
  Val result = select(eq(n.number, 0.0), small, large);
  return select(eq(x, 0.0), x, result);
}

// tanh a = -t / (t + 2) with t = e^(-2a) - 1 and a = |x|. The result gets the sign of x.
Val expandTanh(Val x) {
  Val t = expandExpm1(abs(x) * -2.0);
  return copysign(-t / (t + 2.0), x);
}

// Near 0, erf x = x + x P(x^2). Elsewhere, erf a = 1 - e^(-a (1 + Q(a))) with a = |x|, and the result gets the sign of
// x. P and Q are minimax fits.
Val expandErf(Val x) {
  constexpr double kJoin = 0.925;
  constexpr double kSaturation = 4;
  const double kNear[] = {0.12837916612625122,  -0.37612631916999817,   0.11283687502145767,  -0.026858940720558167,
                          0.005199906416237354, -0.0008130011265166104, 8.316768798977137e-05};
  const double kFar[] = {0.12864848971366882,   0.6351512670516968,     0.10623691231012344,   -0.023762093856930733,
                         0.0036424745339900255, -0.0003228078712709248, 1.1231724784011021e-05};
  ValueBuilder& b = *x.builder;
  Val a = clamp(abs(x), 0, kSaturation);
  Val near = fma(x, polynomial(x * x, kNear), x);
  Val far = 1.0 - expandExp(-fma(a, polynomial(a, kFar), a));
  return select(lt(a, b.like(a, kJoin)), near, copysign(far, x));
}

// erfc a = t e^(P(t) - a^2) with t = 1 / (1 + a / 2) for a = |x|; erfc(-a) = 2 - erfc(a). P is a minimax fit.
Val expandErfc(Val x) {
  constexpr double kVanishes = 12;
  const double kSeries[] = {-1.2655115946833497,  0.9999836119503146,  0.3751982261957289,  0.08237086212962194,
                            -0.08838129240832515, -0.0788387219703325, -0.5451248031229226, 1.9050184616391066,
                            -5.055589463068183,   9.999175993664593,   -12.779655576001332, 10.329769789126681,
                            -5.167578604107764,   1.473516420296011,   -0.18435330966260433};
  Val a = clamp(abs(x), 0, kVanishes);
  Val t = 1.0 / (1.0 + a * 0.5);
  Val tail = t * expandExp(polynomial(t, kSeries) - a * a);
  return select(lt(x, 0.0), 2.0 - tail, tail);
}

namespace {

// Larger arguments overflow f32 anyway. Without the limit, the formula of sinh would compute infinity / infinity.
constexpr double kHyperbolicLimit = 100;

}  // namespace

Val expandSinh(Val x) {
  Val t = expandExpm1(clamp(abs(x), 0, kHyperbolicLimit));
  return copysign((t + t / (t + 1.0)) * 0.5, x);
}

Val expandCosh(Val x) {
  Val e = expandExp(clamp(abs(x), 0, kHyperbolicLimit));
  return (e + 1.0 / e) * 0.5;
}

}  // namespace agspeed::passes
