// SPDX-License-Identifier: Apache-2.0
#include "compiler/kernel/emit/emit_types.h"

#include <cmath>

namespace agspeed::compiler {

using namespace mlir;
using namespace passes;

namespace {

// Bits of the bf16 nearest to x in the low half of an i32, ties to even; a NaN becomes the quiet NaN of its sign.
Val roundToBf16Bits(Val x) {
  ValueBuilder& b = *x.builder;
  Type i32 = b.ops().getI32Type();
  Val bits = bitcastTo(x, i32);
  Val sixteen = b.like(bits, 16);
  Val lastKept = shiftRightLogical(bits, sixteen) & b.like(bits, 1);
  Val rounded = shiftRightLogical(bits + b.like(bits, 0x7fff) + lastKept, sixteen);
  Val quietNan = shiftRightLogical(bits, sixteen) | b.like(bits, 0x40);
  return select(isNan(x), quietNan, rounded);
}

Val bf16BitsToFloat(Val bits32) {
  ValueBuilder& b = *bits32.builder;
  return bitcastTo(shiftLeft(bits32, b.like(bits32, 16)), b.ops().getF32Type());
}

Val intToFloat(Val x, Type element, Signedness signedness) {
  ValueBuilder& b = *x.builder;
  Type type = withElement(x.type(), element);
  if (signedness == Signedness::kSigned) return b.wrap(arith::SIToFPOp::create(b.ops(), b.loc(), type, x.value));
  return b.wrap(arith::UIToFPOp::create(b.ops(), b.loc(), type, x.value));
}

Val floatToInt(Val x, DType to) {
  ValueBuilder& b = *x.builder;
  Type wide = to == DType::kI64 ? b.ops().getI64Type() : b.ops().getI32Type();
  double limit = std::ldexp(1.0, to == DType::kI64 ? 63 : 31);
  Val inRange = select(lt(abs(x), limit), x, b.like(x, -limit));
  Val whole = b.wrap(arith::FPToSIOp::create(b.ops(), b.loc(), withElement(x.type(), wide), inRange.value));
  return convertInt(whole, registerType(b.ops().getContext(), to), Signedness::kSigned);
}

// Rounds a float to the precision of a dtype that registers hold in a wider type.
Val roundTo(Val x, DType dtype) {
  Builder& ops = x.builder->ops();
  if (dtype == DType::kBF16) return bf16BitsToFloat(roundToBf16Bits(x));
  if (dtype == DType::kF16) return convertFloat(convertFloat(x, ops.getF16Type()), ops.getF32Type());
  return x;
}

}  // namespace

Type memoryType(MLIRContext* context, DType dtype) {
  Builder b(context);
  if (dtype == DType::kBool) return b.getI8Type();
  if (dtype == DType::kF16) return b.getF16Type();
  if (dtype == DType::kBF16) return b.getI16Type();
  return registerType(context, dtype);
}

Type registerType(MLIRContext* context, DType dtype) {
  Builder b(context);
  if (dtype == DType::kBool) return b.getI1Type();
  if (dtype == DType::kF64) return b.getF64Type();
  if (isFloat(dtype)) return b.getF32Type();
  return b.getIntegerType(8 * sizeInBytes(dtype));
}

Signedness signednessOf(DType dtype) {
  return dtype == DType::kBool || dtype == DType::kU8 ? Signedness::kUnsigned : Signedness::kSigned;
}

Val fromMemory(Val stored, DType dtype) {
  ValueBuilder& b = *stored.builder;
  if (dtype == DType::kBool) return ne(stored, b.like(stored, 0));
  if (dtype == DType::kF16) return convertFloat(stored, b.ops().getF32Type());
  if (dtype == DType::kBF16) return bf16BitsToFloat(convertInt(stored, b.ops().getI32Type(), Signedness::kUnsigned));
  return stored;
}

Val toMemory(Val value, DType dtype) {
  Builder& ops = value.builder->ops();
  if (dtype == DType::kBool) return convertInt(value, ops.getI8Type(), Signedness::kUnsigned);
  if (dtype == DType::kF16) return convertFloat(value, ops.getF16Type());
  if (dtype == DType::kBF16) return convertInt(roundToBf16Bits(value), ops.getI16Type(), Signedness::kUnsigned);
  return value;
}

Val castValue(Val value, DType from, DType to) {
  Type target = registerType(value.builder->ops().getContext(), to);
  if (to == DType::kBool) return from == DType::kBool ? value : ne(value, value.builder->like(value, 0));
  if (isFloat(to)) {
    bool isNarrow = to == DType::kF16 || to == DType::kBF16;
    Val number = isFloat(from) ? convertFloat(value, target) : intToFloat(value, target, signednessOf(from));
    return isNarrow ? roundTo(number, to) : number;
  }
  return isFloat(from) ? floatToInt(value, to) : convertInt(value, target, signednessOf(from));
}

}  // namespace agspeed::compiler
