// SPDX-License-Identifier: Apache-2.0
#include "scalar_interpreter.h"

#include <cmath>
#include <limits>

namespace agspeed::compiler::testing {
namespace {

using Op = PointwiseOp;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

double floatUnary(Op op, double x) {
  switch (op) {
    case Op::kAbs: return std::fabs(x);
    case Op::kNeg: return -x;
    case Op::kExp: return std::exp(x);
    case Op::kExp2: return std::exp2(x);
    case Op::kExpm1: return std::expm1(x);
    case Op::kLog: return std::log(x);
    case Op::kLog2: return std::log2(x);
    case Op::kLog10: return std::log10(x);
    case Op::kLog1p: return std::log1p(x);
    case Op::kSqrt: return std::sqrt(x);
    case Op::kRsqrt: return 1 / std::sqrt(x);
    case Op::kReciprocal: return 1 / x;
    case Op::kSin: return std::sin(x);
    case Op::kCos: return std::cos(x);
    case Op::kTan: return std::tan(x);
    case Op::kAsin: return std::asin(x);
    case Op::kAcos: return std::acos(x);
    case Op::kAtan: return std::atan(x);
    case Op::kSinh: return std::sinh(x);
    case Op::kCosh: return std::cosh(x);
    case Op::kTanh: return std::tanh(x);
    case Op::kAsinh: return std::asinh(x);
    case Op::kAcosh: return std::acosh(x);
    case Op::kAtanh: return std::atanh(x);
    case Op::kErf: return std::erf(x);
    case Op::kErfc: return std::erfc(x);
    case Op::kRelu: return x <= 0 ? 0 : x;
    case Op::kFloor: return std::floor(x);
    case Op::kCeil: return std::ceil(x);
    case Op::kRound: return std::nearbyint(x);
    case Op::kTrunc: return std::trunc(x);
    case Op::kSign: return (x > 0) - (x < 0);
    default: return kNan;
  }
}

// ATen's div_floor_floating and remainder, in the operands' precision.
template <typename T>
double floorDivide(T a, T b) {
  if (b == 0) return a / b;
  T mod = std::fmod(a, b);
  T quotient = (a - mod) / b;
  if (mod != 0 && (b < 0) != (mod < 0)) quotient -= 1;
  if (quotient == 0) return std::copysign(T(0), a / b);
  T below = std::floor(quotient);
  return quotient - below > T(0.5) ? below + 1 : below;
}

template <typename T>
double remainderOf(T a, T b) {
  T mod = std::fmod(a, b);
  return mod != 0 && (b < 0) != (mod < 0) ? mod + b : mod;
}

double floatBinary(Op op, DType dtype, double a, double b) {
  bool isF32 = dtype != DType::kF64;
  float a32 = static_cast<float>(a);
  float b32 = static_cast<float>(b);
  switch (op) {
    case Op::kAdd: return a + b;
    case Op::kSub: return a - b;
    case Op::kMul: return a * b;
    case Op::kDiv: return a / b;
    case Op::kFloorDiv: return isF32 ? floorDivide(a32, b32) : floorDivide(a, b);
    case Op::kRemainder: return isF32 ? remainderOf(a32, b32) : remainderOf(a, b);
    case Op::kFmod: return std::fmod(a, b);
    case Op::kPow: return std::pow(a, b);
    case Op::kAtan2: return std::atan2(a, b);
    case Op::kMaximum: return std::isnan(a) || std::isnan(b) ? kNan : std::max(a, b);
    case Op::kMinimum: return std::isnan(a) || std::isnan(b) ? kNan : std::min(a, b);
    default: return kNan;
  }
}

int64_t intUnary(Op op, int64_t x) {
  switch (op) {
    case Op::kAbs: return x < 0 ? static_cast<int64_t>(0 - static_cast<uint64_t>(x)) : x;
    case Op::kNeg: return static_cast<int64_t>(0 - static_cast<uint64_t>(x));
    case Op::kRelu: return x > 0 ? x : 0;
    case Op::kSign: return (x > 0) - (x < 0);
    case Op::kBitwiseNot: return ~x;
    default: return x;  // rounding operations
  }
}

int64_t intPower(int64_t base, int64_t exponent) {
  if (exponent < 0) return base == 1 ? 1 : base == -1 ? (exponent % 2 ? -1 : 1) : 0;
  uint64_t result = 1;
  uint64_t square = static_cast<uint64_t>(base);
  for (uint64_t left = static_cast<uint64_t>(exponent); left; left >>= 1, square *= square) {
    if (left & 1) result *= square;
  }
  return static_cast<int64_t>(result);
}

int64_t intDivision(Op op, int64_t a, int64_t b) {
  if (b == 0) return 0;
  if (b == -1) return op == Op::kFloorDiv ? static_cast<int64_t>(0 - static_cast<uint64_t>(a)) : 0;
  int64_t rest = a % b;
  bool isMixed = rest != 0 && (rest < 0) != (b < 0);
  if (op == Op::kFloorDiv) return a / b - isMixed;
  return op == Op::kRemainder && isMixed ? rest + b : rest;
}

int64_t intShift(Op op, DType dtype, int64_t a, int64_t bits) {
  int64_t width = 8 * static_cast<int64_t>(sizeInBytes(dtype));
  bool isOut = bits < 0 || bits >= width;
  if (op == Op::kShiftLeft) return isOut ? 0 : static_cast<int64_t>(static_cast<uint64_t>(a) << bits);
  return isOut ? (a < 0 ? -1 : 0) : a >> bits;
}

int64_t intBinary(Op op, DType dtype, int64_t a, int64_t b) {
  uint64_t ua = static_cast<uint64_t>(a);
  uint64_t ub = static_cast<uint64_t>(b);
  switch (op) {
    case Op::kAdd: return static_cast<int64_t>(ua + ub);
    case Op::kSub: return static_cast<int64_t>(ua - ub);
    case Op::kMul: return static_cast<int64_t>(ua * ub);
    case Op::kFloorDiv:
    case Op::kRemainder: return intDivision(op, a, b);
    case Op::kFmod: return b == 0 || b == -1 ? 0 : a % b;
    case Op::kPow: return intPower(a, b);
    case Op::kMaximum: return std::max(a, b);
    case Op::kMinimum: return std::min(a, b);
    case Op::kBitwiseAnd:
    case Op::kLogicalAnd: return a & b;
    case Op::kBitwiseOr:
    case Op::kLogicalOr: return a | b;
    case Op::kBitwiseXor:
    case Op::kLogicalXor: return a ^ b;
    case Op::kShiftLeft:
    case Op::kShiftRight: return intShift(op, dtype, a, b);
    default: return 0;
  }
}

template <typename T>
bool compareValues(Op op, T a, T b) {
  switch (op) {
    case Op::kEq: return a == b;
    case Op::kNe: return a != b;
    case Op::kLt: return a < b;
    case Op::kLe: return a <= b;
    case Op::kGt: return a > b;
    default: return a >= b;
  }
}

// Rounds a double to the float dtype, and wraps an integer to the width of the dtype.
Scalar normalize(DType dtype, Scalar value) {
  if (isFloat(dtype)) return castScalar(value, DType::kF64, dtype);
  return castScalar(value, DType::kI64, dtype);
}

Scalar ofBool(bool value) { return {0, value}; }

double floatTernary(DType dtype, double a, double b, double c) {
  if (dtype == DType::kF64) return std::fma(a, b, c);
  return std::fma(static_cast<float>(a), static_cast<float>(b), static_cast<float>(c));
}

// 1 / (1 + e^-x): the rounding of e^-x to the dtype is part of the definition, as in ATen (it may overflow).
double sigmoid(DType dtype, double x) {
  double e = std::exp(-x);
  return 1 / (1 + (dtype == DType::kF64 ? e : static_cast<double>(static_cast<float>(e))));
}

}  // namespace

Scalar evaluate(PointwiseOp op, DType operands, DType result, const std::vector<Scalar>& inputs) {
  bool isFloating = isFloat(operands);
  Scalar a = inputs[0];
  Scalar b = inputs.size() > 1 ? inputs[1] : Scalar();
  if (op == Op::kWhere) return a.i ? inputs[1] : inputs[2];
  if (op >= Op::kEq && op <= Op::kGe) {
    return ofBool(isFloating ? compareValues(op, a.f, b.f) : compareValues(op, a.i, b.i));
  }
  if (op == Op::kIsNan) return ofBool(isFloating && std::isnan(a.f));
  if (op == Op::kIsInf) return ofBool(isFloating && std::isinf(a.f));
  if (op == Op::kLogicalNot) return ofBool(!a.i);
  Scalar value;
  if (op == Op::kFma) {
    if (isFloating)
      value.f = floatTernary(operands, a.f, b.f, inputs[2].f);
    else
      value.i = intBinary(Op::kAdd, operands, intBinary(Op::kMul, operands, a.i, b.i), inputs[2].i);
  } else if (op == Op::kSigmoid) {
    value.f = sigmoid(operands, a.f);
  } else if (inputs.size() == 1) {
    value.f = floatUnary(op, a.f);
    value.i = intUnary(op, a.i);
  } else {
    value.f = floatBinary(op, operands, a.f, b.f);
    if (!isFloating) value.i = intBinary(op, operands, a.i, b.i);
  }
  return normalize(result, value);
}

}  // namespace agspeed::compiler::testing
