// SPDX-License-Identifier: Apache-2.0
// Val is an SSA value, scalar or vector, with arithmetic operators. ValueBuilder makes Vals. With both, code that emits
// a formula reads like the formula:
//
//   Val r = fma(-n, ln2Hi, x);
//   Val y = select(isNan(x), x, r * r + b.like(r, 0.5));
//
// Every operator emits one arith or math operation, and the constants that it needs, at the builder's insertion point.
// The operands of an operator must have the same type. like(x, c) is the constant c splatted to the type of x.
// Comparisons of floats are ordered (false for NaN); only ne is true for NaN.
// Ownership: a Val borrows the ValueBuilder, which borrows the OpBuilder. All of them stay on one thread.
#pragma once

#include <cstdint>

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/TypeUtilities.h"

namespace agspeed::passes {

class ValueBuilder;

struct Val {
  ValueBuilder* builder = nullptr;
  mlir::Value value;

  mlir::Type type() const { return value.getType(); }
  /// The element type of a vector; the type itself for a scalar.
  mlir::Type elementType() const { return mlir::getElementTypeOrSelf(value); }
  bool isFloat() const { return mlir::isa<mlir::FloatType>(elementType()); }
  unsigned bitWidth() const { return elementType().getIntOrFloatBitWidth(); }
};

class ValueBuilder {
 public:
  ValueBuilder(mlir::OpBuilder& ops, mlir::Location loc) : ops_(ops), loc_(loc) {}

  mlir::OpBuilder& ops() { return ops_; }
  mlir::Location loc() const { return loc_; }
  Val wrap(mlir::Value value) { return {this, value}; }
  /// A constant of the given type. A vector type gives a splat.
  Val constant(mlir::Type type, double value);
  Val integer(mlir::Type type, int64_t value);
  /// A constant of the type of x. The value is rounded for floats and wraps around for integers.
  Val like(Val x, double value);
  /// A scalar repeated to the given vector type; a value that already has the type is returned as it is.
  Val splat(Val x, mlir::Type type);

 private:
  mlir::OpBuilder& ops_;
  mlir::Location loc_;
};

/// The type of x with another element type: (vector<16xf32>, i1) gives vector<16xi1>.
mlir::Type withElement(mlir::Type shape, mlir::Type element);

// Integer arithmetic wraps around.
Val operator+(Val a, Val b);
Val operator-(Val a, Val b);
Val operator*(Val a, Val b);
Val operator-(Val a);
/// Floats only. The quotient is correctly rounded.
Val operator/(Val a, Val b);
// Bitwise operations and shifts, for integers and booleans.
Val operator&(Val a, Val b);
Val operator|(Val a, Val b);
Val operator^(Val a, Val b);
Val operator~(Val a);
Val shiftLeft(Val a, Val bits);
Val shiftRightArithmetic(Val a, Val bits);
Val shiftRightLogical(Val a, Val bits);

// Operators with a number on one side. The number becomes a constant of the other side's type.
Val operator+(Val a, double b);
Val operator+(double a, Val b);
Val operator-(Val a, double b);
Val operator-(double a, Val b);
Val operator*(Val a, double b);
Val operator*(double a, Val b);
Val operator/(Val a, double b);
Val operator/(double a, Val b);

enum class Signedness : uint8_t { kSigned, kUnsigned };
Val eq(Val a, Val b);
Val ne(Val a, Val b);
Val lt(Val a, Val b, Signedness signedness = Signedness::kSigned);
Val le(Val a, Val b, Signedness signedness = Signedness::kSigned);
Val gt(Val a, Val b, Signedness signedness = Signedness::kSigned);
Val ge(Val a, Val b, Signedness signedness = Signedness::kSigned);
Val eq(Val a, double b);
Val ne(Val a, double b);
Val lt(Val a, double b);
Val gt(Val a, double b);
Val ge(Val a, double b);
Val isNan(Val x);
Val select(Val condition, Val whenTrue, Val whenFalse);

/// a * b + c with one rounding.
Val fma(Val a, Val b, Val c);
Val abs(Val x);
Val copysign(Val magnitude, Val sign);
Val floor(Val x);
Val ceil(Val x);
Val trunc(Val x);
/// Rounds to the nearest integer, and halves to the even one.
Val roundEven(Val x);
Val sqrt(Val x);
/// The remainder that fmod in C computes.
Val fmod(Val a, Val b);

/// The same bits as another element type of the same width.
Val bitcastTo(Val x, mlir::Type element);
/// Converts floats to a float type of another width. Returns x if the width is the same.
Val convertFloat(Val x, mlir::Type element);
/// Converts integers to an integer type of another width: truncates, or extends as `signedness` says. Returns x if the
/// width is the same.
Val convertInt(Val x, mlir::Type element, Signedness signedness);

/// c[0] + c[1] x + c[2] x^2 + ... by Horner's rule with fused multiply-add.
Val polynomial(Val x, mlir::ArrayRef<double> coefficients);

}  // namespace agspeed::passes
