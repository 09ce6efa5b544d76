// SPDX-License-Identifier: Apache-2.0
#include "compiler/kernel/emit/emit_integer.h"

#include "mlir/Dialect/SCF/IR/SCF.h"

namespace agspeed::compiler {

using namespace mlir;
using namespace passes;

namespace {

bool isSigned(Signedness signedness) { return signedness == Signedness::kSigned; }

template <typename SignedOp, typename UnsignedOp>
Val pickOp(Val a, Val b, Signedness signedness) {
  ValueBuilder& builder = *a.builder;
  if (isSigned(signedness)) {
    return builder.wrap(SignedOp::create(builder.ops(), builder.loc(), a.value, b.value).getResult());
  }
  return builder.wrap(UnsignedOp::create(builder.ops(), builder.loc(), a.value, b.value).getResult());
}

struct Division {
  Val quotient;   ///< rounded towards zero
  Val remainder;  ///< a - quotient * b
};

// Machine division traps for b == 0 and for min / -1, so the code divides by 1 instead and corrects the results.
Division divide(Val a, Val b, Signedness signedness) {
  ValueBuilder& builder = *a.builder;
  Val zero = builder.like(a, 0);
  Val isZero = eq(b, zero);
  Val isUnsafe = isZero;
  if (isSigned(signedness)) isUnsafe = isZero | eq(b, builder.like(b, -1));
  Val safe = select(isUnsafe, builder.like(b, 1), b);
  Val quotient = pickOp<arith::DivSIOp, arith::DivUIOp>(a, safe, signedness);
  Val remainder = a - quotient * safe;
  if (isSigned(signedness)) quotient = select(isUnsafe, -a, quotient);
  return {select(isZero, zero, quotient), remainder};
}

Val signsDiffer(Val a, Val b) {
  Val zero = a.builder->like(a, 0);
  return lt(a ^ b, zero);
}

Val isOutOfRange(Val bits, double limit, Signedness signedness) {
  Val tooMany = ge(bits, bits.builder->like(bits, limit), signedness);
  return isSigned(signedness) ? lt(bits, 0.0) | tooMany : tooMany;
}

// base^exponent for exponent >= 0, by squaring; wraps around.
Val powerBySquaring(Val base, Val exponent) {
  ValueBuilder& b = *base.builder;
  Val one = b.like(base, 1);
  Type i64 = b.ops().getI64Type();
  SmallVector<Value> initial = {one.value, base.value, exponent.value};
  auto loop = scf::ForOp::create(
      b.ops(), b.loc(), b.integer(i64, 0).value, b.integer(i64, base.bitWidth()).value, b.integer(i64, 1).value,
      initial, [&](OpBuilder& ops, Location loc, Value, ValueRange carried) {
        OpBuilder::InsertionGuard guard(b.ops());
        b.ops().setInsertionPoint(ops.getInsertionBlock(), ops.getInsertionPoint());
        Val result = b.wrap(carried[0]);
        Val square = b.wrap(carried[1]);
        Val left = b.wrap(carried[2]);
        Val taken = select(ne(left & one, 0.0), result * square, result);
        scf::YieldOp::create(b.ops(), loc, {taken.value, (square * square).value, shiftRightLogical(left, one).value});
      });
  return b.wrap(loop.getResult(0));
}

}  // namespace

Val intFloorDiv(Val a, Val b, Signedness signedness) {
  auto [quotient, remainder] = divide(a, b, signedness);
  if (!isSigned(signedness)) return quotient;
  Val rounds = ne(remainder, 0.0) & signsDiffer(a, b) & ne(b, 0.0);
  return select(rounds, quotient - 1.0, quotient);
}

Val intRemainder(Val a, Val b, Signedness signedness) {
  Val remainder = divide(a, b, signedness).remainder;
  if (!isSigned(signedness)) return remainder;
  Val needsShift = ne(remainder, 0.0) & signsDiffer(remainder, b);
  return select(needsShift, remainder + b, remainder);
}

Val intFmod(Val a, Val b, Signedness signedness) { return divide(a, b, signedness).remainder; }

Val intPower(Val base, Val exponent, Signedness signedness) {
  Val power = powerBySquaring(base, exponent);
  if (!isSigned(signedness)) return power;
  ValueBuilder& b = *base.builder;
  Val zero = b.like(base, 0);
  Val one = b.like(base, 1);
  Val minusOne = b.like(base, -1);
  Val isOdd = ne(exponent & one, 0.0);
  Val inverse = select(eq(base, one), one, select(eq(base, minusOne), select(isOdd, minusOne, one), zero));
  return select(lt(exponent, zero), inverse, power);
}

Val intShiftLeft(Val a, Val bits, Signedness signedness) {
  Val zero = a.builder->like(a, 0);
  Val outOfRange = isOutOfRange(bits, a.bitWidth(), signedness);
  return select(outOfRange, zero, shiftLeft(a, select(outOfRange, zero, bits)));
}

Val intShiftRight(Val a, Val bits, Signedness signedness) {
  ValueBuilder& b = *a.builder;
  Val outOfRange = isOutOfRange(bits, a.bitWidth(), signedness);
  Val most = b.like(bits, a.bitWidth() - 1.0);
  Val shift = select(outOfRange, most, bits);
  if (isSigned(signedness)) return shiftRightArithmetic(a, shift);
  return select(outOfRange, b.like(a, 0), shiftRightLogical(a, shift));
}

}  // namespace agspeed::compiler
