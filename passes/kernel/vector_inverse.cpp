// SPDX-License-Identifier: Apache-2.0
// Inverse trigonometric functions. All use one minimax fit of atan on [0, 1], in f64.
#include <limits>

#include "passes/kernel/vector_math.h"

namespace agspeed::passes {

using namespace mlir;

namespace {

constexpr double kPi = 3.14159265358979323846;

// atan q = q P(q^2) for 0 <= q <= 1.
Val atanOfFraction(Val q) {
  const double kSeries[] = {0.9999999996281681,   -0.3333332393401053,   0.19999604594925527,  -0.1427915910370375,
                            0.11054497821978726,  -0.08798759663434239,  0.06716080067630395,  -0.04435711770996328,
                            0.022274039839563834, -0.007199237814104849, 0.0010910819118414186};
  return q * polynomial(q * q, kSeries);
}

Val isNegative(Val x) {
  Val bits = bitcastTo(x, x.builder->ops().getIntegerType(x.bitWidth()));
  return lt(bits, 0.0);
}

}  // namespace

// The angle of the point (x, y). The smaller of |x| and |y| divided by the larger one gives an angle in the first
// octant. The selects then extend it to the quadrant and to the half planes.
Val wideAtan2(Val y, Val x) {
  ValueBuilder& b = *x.builder;
  Val a = abs(y);
  Val c = abs(x);
  Val isSteep = gt(a, c);
  Val larger = select(isSteep, a, c);
  Val smaller = select(isSteep, c, a);
  Val fraction = select(eq(smaller, larger), b.like(x, 1), smaller / larger);
  fraction = select(eq(larger, 0.0), b.like(x, 0), fraction);
  Val angle = atanOfFraction(fraction);
  angle = select(isSteep, kPi / 2 - angle, angle);
  angle = copysign(select(isNegative(x), kPi - angle, angle), y);
  return select(isNan(x) | isNan(y), x + y, angle);
}

Val expandAtan2(Val y, Val x) {
  Builder& ops = x.builder->ops();
  return convertFloat(wideAtan2(convertFloat(y, ops.getF64Type()), convertFloat(x, ops.getF64Type())),
                      ops.getF32Type());
}

Val expandAtan(Val x) { return wideAtan2(x, x.builder->like(x, 1)); }

Val expandAsin(Val x) { return wideAtan2(x, sqrt((1.0 - x) * (1.0 + x))); }

Val expandAcos(Val x) { return wideAtan2(sqrt((1.0 - x) * (1.0 + x)), x); }

}  // namespace agspeed::passes
