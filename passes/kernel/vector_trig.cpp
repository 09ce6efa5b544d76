// SPDX-License-Identifier: Apache-2.0
// sin, cos and tan of f32. x is reduced to n pi/2 + r with |r| <= pi/4. Taylor series give sin r and cos r.
//
// pi/2 is subtracted in three parts (Cody and Waite). n times the first part is exact within a fused multiply-add if
// n < 2^16. Arguments beyond kMaxReducedAngle leave the fast path. If any lane has one, the whole vector calls libm,
// but lanes with small arguments keep their fast result.
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"
#include "passes/kernel/vector_math.h"

namespace agspeed::passes {

using namespace mlir;

namespace {

constexpr double kMaxReducedAngle = 71476;  // n < 45503
constexpr double kHalfPi[] = {1.57079637050628662109375, -4.371138828673793e-8, -1.7151245100058819e-15};
constexpr double kTwoOverPi = 0.63661977236758134308;
constexpr double kRoundingMagic = 12582912.0;  // 1.5 * 2^23

struct Reduced {
  Val quadrant;  ///< n as an integer
  Val sine;      ///< sin r
  Val cosine;
};

Reduced reduceAngle(Val x) {
  const double kSine[] = {-1.0 / 6, 1.0 / 120, -1.0 / 5040, 1.0 / 362880};
  const double kCosine[] = {1.0 / 24, -1.0 / 720, 1.0 / 40320, -1.0 / 3628800};
  ValueBuilder& b = *x.builder;
  Val shifted = fma(x, b.like(x, kTwoOverPi), b.like(x, kRoundingMagic));
  Val n = shifted - kRoundingMagic;
  Val r = x;
  for (double part : kHalfPi) r = fma(-n, b.like(x, part), r);
  Val z = r * r;
  Val sine = fma(r * z, polynomial(z, kSine), r);
  Val cosine = fma(z * z, polynomial(z, kCosine), fma(z, b.like(z, -0.5), b.like(z, 1)));
  return {bitcastTo(shifted, b.ops().getI32Type()), sine, cosine};
}

Val bitOf(Val integer, int bit) { return ne(integer & integer.builder->like(integer, 1 << bit), 0.0); }

// sin(n pi/2 + r). It is sin r, cos r, -sin r or -cos r for n = 0, 1, 2 or 3 modulo 4.
Val sineOfQuadrant(const Reduced& reduced, Val quadrant) {
  Val value = select(bitOf(quadrant, 0), reduced.cosine, reduced.sine);
  return select(bitOf(quadrant, 1), -value, value);
}

// The fast result for arguments up to kMaxReducedAngle. For larger ones it emits the operation itself, which
// math-to-libm turns into calls.
template <typename Op>
Val withLargeArguments(Val x, Val fast) {
  ValueBuilder& b = *x.builder;
  OpBuilder& ops = b.ops();
  Val isLarge = gt(abs(x), kMaxReducedAngle);
  Value any = isLarge.value;
  if (isa<VectorType>(x.type())) any = vector::ReductionOp::create(ops, b.loc(), vector::CombiningKind::OR, any);
  auto branch = scf::IfOp::create(ops, b.loc(), TypeRange{x.type()}, any, /*addThenBlock=*/true, /*addElseBlock=*/true);
  OpBuilder::InsertionGuard guard(ops);
  ops.setInsertionPointToStart(branch.thenBlock());
  Val slow = b.wrap(Op::create(ops, b.loc(), x.value));
  scf::YieldOp::create(ops, b.loc(), select(isLarge, slow, fast).value);
  ops.setInsertionPointToStart(branch.elseBlock());
  scf::YieldOp::create(ops, b.loc(), fast.value);
  return b.wrap(branch.getResult(0));
}

}  // namespace

Val expandSin(Val x) {
  Reduced reduced = reduceAngle(x);
  Val sine = select(eq(x, 0.0), x, sineOfQuadrant(reduced, reduced.quadrant));
  return withLargeArguments<math::SinOp>(x, sine);
}

Val expandCos(Val x) {
  Reduced reduced = reduceAngle(x);
  Val next = reduced.quadrant + reduced.quadrant.builder->like(reduced.quadrant, 1);
  return withLargeArguments<math::CosOp>(x, sineOfQuadrant(reduced, next));
}

// tan x is tan r in even quadrants and -1 / tan r in odd ones.
Val expandTan(Val x) {
  Reduced reduced = reduceAngle(x);
  Val isOdd = bitOf(reduced.quadrant, 0);
  Val numerator = select(isOdd, -reduced.cosine, reduced.sine);
  Val denominator = select(isOdd, reduced.sine, reduced.cosine);
  Val tangent = select(eq(x, 0.0), x, numerator / denominator);
  return withLargeArguments<math::TanOp>(x, tangent);
}

}  // namespace agspeed::passes
