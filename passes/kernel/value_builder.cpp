// SPDX-License-Identifier: Apache-2.0
#include "passes/kernel/value_builder.h"

#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"

namespace agspeed::passes {

using namespace mlir;
using arith::CmpFPredicate;
using arith::CmpIPredicate;

namespace {

template <typename FloatOp, typename IntOp>
Val emit(Val a, Val b) {
  OpBuilder& ops = a.builder->ops();
  Location loc = a.builder->loc();
  if (a.isFloat()) return a.builder->wrap(FloatOp::create(ops, loc, a.value, b.value));
  return a.builder->wrap(IntOp::create(ops, loc, a.value, b.value));
}

template <typename Op>
Val emitOne(Val a, Val b) {
  return a.builder->wrap(Op::create(a.builder->ops(), a.builder->loc(), a.value, b.value));
}

template <typename Op>
Val emitOne(Val a) {
  return a.builder->wrap(Op::create(a.builder->ops(), a.builder->loc(), a.value));
}

template <typename Op>
Val emitCast(Val x, Type element) {
  Type type = withElement(x.type(), element);
  return x.builder->wrap(Op::create(x.builder->ops(), x.builder->loc(), type, x.value));
}

Val compare(Val a, Val b, CmpFPredicate ofFloats, CmpIPredicate ofInts) {
  OpBuilder& ops = a.builder->ops();
  Location loc = a.builder->loc();
  if (a.isFloat()) return a.builder->wrap(arith::CmpFOp::create(ops, loc, ofFloats, a.value, b.value));
  return a.builder->wrap(arith::CmpIOp::create(ops, loc, ofInts, a.value, b.value));
}

CmpIPredicate pick(Signedness signedness, CmpIPredicate ofSigned, CmpIPredicate ofUnsigned) {
  return signedness == Signedness::kSigned ? ofSigned : ofUnsigned;
}

TypedAttr splatAttr(Type type, TypedAttr scalar) {
  if (auto vector = dyn_cast<VectorType>(type)) return DenseElementsAttr::get(vector, Attribute(scalar));
  return scalar;
}

}  // namespace

Val ValueBuilder::constant(Type type, double value) {
  Type element = getElementTypeOrSelf(type);
  if (!isa<FloatType>(element)) return integer(type, static_cast<int64_t>(value));
  return wrap(arith::ConstantOp::create(ops_, loc_, splatAttr(type, FloatAttr::get(element, value))));
}

Val ValueBuilder::integer(Type type, int64_t value) {
  Type element = getElementTypeOrSelf(type);
  APInt bits(element.getIntOrFloatBitWidth(), static_cast<uint64_t>(value), /*isSigned=*/true, /*implicitTrunc=*/true);
  return wrap(arith::ConstantOp::create(ops_, loc_, splatAttr(type, IntegerAttr::get(element, bits))));
}

Val ValueBuilder::like(Val x, double value) { return constant(x.type(), value); }

Val ValueBuilder::splat(Val x, Type type) {
  if (x.type() == type) return x;
  return wrap(vector::BroadcastOp::create(ops_, loc_, type, x.value));
}

Type withElement(Type shape, Type element) {
  if (auto vector = dyn_cast<VectorType>(shape)) return VectorType::get(vector.getShape(), element);
  return element;
}

Val operator+(Val a, Val b) { return emit<arith::AddFOp, arith::AddIOp>(a, b); }
Val operator-(Val a, Val b) { return emit<arith::SubFOp, arith::SubIOp>(a, b); }
Val operator*(Val a, Val b) { return emit<arith::MulFOp, arith::MulIOp>(a, b); }
Val operator-(Val a) { return a.isFloat() ? emitOne<arith::NegFOp>(a) : a.builder->integer(a.type(), 0) - a; }
Val operator/(Val a, Val b) { return emitOne<arith::DivFOp>(a, b); }
Val operator&(Val a, Val b) { return emitOne<arith::AndIOp>(a, b); }
Val operator|(Val a, Val b) { return emitOne<arith::OrIOp>(a, b); }
Val operator^(Val a, Val b) { return emitOne<arith::XOrIOp>(a, b); }
Val operator~(Val a) { return a ^ a.builder->integer(a.type(), -1); }
Val shiftLeft(Val a, Val bits) { return emitOne<arith::ShLIOp>(a, bits); }
Val shiftRightArithmetic(Val a, Val bits) { return emitOne<arith::ShRSIOp>(a, bits); }
Val shiftRightLogical(Val a, Val bits) { return emitOne<arith::ShRUIOp>(a, bits); }

Val operator+(Val a, double b) { return a + a.builder->like(a, b); }
Val operator+(double a, Val b) { return b.builder->like(b, a) + b; }
Val operator-(Val a, double b) { return a - a.builder->like(a, b); }
Val operator-(double a, Val b) { return b.builder->like(b, a) - b; }
Val operator*(Val a, double b) { return a * a.builder->like(a, b); }
Val operator*(double a, Val b) { return b.builder->like(b, a) * b; }
Val operator/(Val a, double b) { return a / a.builder->like(a, b); }
Val operator/(double a, Val b) { return b.builder->like(b, a) / b; }

Val eq(Val a, Val b) { return compare(a, b, CmpFPredicate::OEQ, CmpIPredicate::eq); }
Val ne(Val a, Val b) { return compare(a, b, CmpFPredicate::UNE, CmpIPredicate::ne); }
Val lt(Val a, Val b, Signedness s) {
  return compare(a, b, CmpFPredicate::OLT, pick(s, CmpIPredicate::slt, CmpIPredicate::ult));
}
Val le(Val a, Val b, Signedness s) {
  return compare(a, b, CmpFPredicate::OLE, pick(s, CmpIPredicate::sle, CmpIPredicate::ule));
}
Val gt(Val a, Val b, Signedness s) {
  return compare(a, b, CmpFPredicate::OGT, pick(s, CmpIPredicate::sgt, CmpIPredicate::ugt));
}
Val ge(Val a, Val b, Signedness s) {
  return compare(a, b, CmpFPredicate::OGE, pick(s, CmpIPredicate::sge, CmpIPredicate::uge));
}
Val eq(Val a, double b) { return eq(a, a.builder->like(a, b)); }
Val ne(Val a, double b) { return ne(a, a.builder->like(a, b)); }
Val lt(Val a, double b) { return lt(a, a.builder->like(a, b)); }
Val gt(Val a, double b) { return gt(a, a.builder->like(a, b)); }
Val ge(Val a, double b) { return ge(a, a.builder->like(a, b)); }
Val isNan(Val x) { return ne(x, x); }

Val select(Val condition, Val whenTrue, Val whenFalse) {
  ValueBuilder& b = *condition.builder;
  return b.wrap(arith::SelectOp::create(b.ops(), b.loc(), condition.value, whenTrue.value, whenFalse.value));
}

Val fma(Val a, Val b, Val c) {
  return a.builder->wrap(math::FmaOp::create(a.builder->ops(), a.builder->loc(), a.value, b.value, c.value));
}
Val abs(Val x) { return x.isFloat() ? emitOne<math::AbsFOp>(x) : select(lt(x, 0.0), -x, x); }
Val copysign(Val magnitude, Val sign) { return emitOne<math::CopySignOp>(magnitude, sign); }
Val floor(Val x) { return emitOne<math::FloorOp>(x); }
Val ceil(Val x) { return emitOne<math::CeilOp>(x); }
Val trunc(Val x) { return emitOne<math::TruncOp>(x); }
Val roundEven(Val x) { return emitOne<math::RoundEvenOp>(x); }
Val sqrt(Val x) { return emitOne<math::SqrtOp>(x); }
Val fmod(Val a, Val b) { return emitOne<arith::RemFOp>(a, b); }

Val bitcastTo(Val x, Type element) { return emitCast<arith::BitcastOp>(x, element); }

Val convertFloat(Val x, Type element) {
  unsigned width = element.getIntOrFloatBitWidth();
  if (width == x.bitWidth()) return x;
  return width > x.bitWidth() ? emitCast<arith::ExtFOp>(x, element) : emitCast<arith::TruncFOp>(x, element);
}

Val convertInt(Val x, Type element, Signedness signedness) {
  unsigned width = element.getIntOrFloatBitWidth();
  if (width == x.bitWidth()) return x;
  if (width < x.bitWidth()) return emitCast<arith::TruncIOp>(x, element);
  return signedness == Signedness::kSigned ? emitCast<arith::ExtSIOp>(x, element)
                                           : emitCast<arith::ExtUIOp>(x, element);
}

Val polynomial(Val x, ArrayRef<double> coefficients) {
  Val sum = x.builder->like(x, coefficients.back());
  for (double coefficient : llvm::reverse(coefficients.drop_back())) {
    sum = fma(sum, x, x.builder->like(x, coefficient));
  }
  return sum;
}

}  // namespace agspeed::passes
