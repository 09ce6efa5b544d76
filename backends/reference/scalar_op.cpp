// SPDX-License-Identifier: Apache-2.0
#include "backends/reference/scalar_op.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace agspeed::backends::reference {

using compiler::PointwiseOp;

namespace {

// Rounds to nearest, ties to even, with `bits` significant bits and the given smallest normal exponent.
double roundMantissa(double value, int bits, int minExponent) {
  if (value == 0 || !std::isfinite(value)) return value;
  int exponent = std::max(std::ilogb(value), minExponent);
  double unit = std::ldexp(1.0, exponent - bits + 1);
  return std::nearbyint(value / unit) * unit;
}

double roundReal(double value, DType dtype) {
  if (dtype == DType::kF64) return value;
  if (dtype == DType::kF32) return static_cast<float>(value);
  if (dtype == DType::kBF16) {
    double rounded = roundMantissa(value, 8, -126);
    return std::abs(rounded) > 0x1.fep127 ? std::copysign(INFINITY, value) : rounded;
  }
  double rounded = roundMantissa(value, 11, -14);
  return std::abs(rounded) > 65504.0 ? std::copysign(INFINITY, value) : rounded;
}

int64_t wrapInteger(int64_t value, DType dtype) {
  switch (dtype) {
    case DType::kBool: return value != 0;
    case DType::kU8: return static_cast<uint8_t>(value);
    case DType::kI8: return static_cast<int8_t>(value);
    case DType::kI16: return static_cast<int16_t>(value);
    case DType::kI32: return static_cast<int32_t>(value);
    default: return value;
  }
}

// Converts half-precision formats: through float for bf16, and by hand for f16.
double halfToDouble(uint16_t bits) {
  int exponent = (bits >> 10) & 31;
  int mantissa = bits & 1023;
  double sign = (bits & 0x8000) ? -1.0 : 1.0;
  if (exponent == 31) return mantissa ? std::numeric_limits<double>::quiet_NaN() : sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(mantissa, -24);
  return sign * std::ldexp(1024 + mantissa, exponent - 25);
}

uint16_t doubleToHalf(double value) {
  uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  if (std::isnan(value)) return sign | 0x7e00;
  double magnitude = std::abs(roundReal(value, DType::kF16));
  if (std::isinf(magnitude)) return sign | 0x7c00;
  if (magnitude < 0x1p-14) return sign | static_cast<uint16_t>(std::ldexp(magnitude, 24));
  int exponent = std::ilogb(magnitude);
  auto mantissa = static_cast<uint16_t>(std::ldexp(magnitude, 10 - exponent) - 1024);
  return static_cast<uint16_t>(sign | ((exponent + 15) << 10) | mantissa);
}

template <typename T>
Scalar loadInteger(const void* base, int64_t index) {
  return {.integer = static_cast<int64_t>(static_cast<const T*>(base)[index])};
}

template <typename T>
void storeAs(void* base, int64_t index, T value) {
  static_cast<T*>(base)[index] = value;
}

Scalar real(double value, DType dtype) { return {.real = roundReal(value, dtype)}; }
Scalar integer(int64_t value, DType dtype) { return {.integer = wrapInteger(value, dtype)}; }
Scalar boolean(bool value) { return {.integer = value}; }

double pythonRemainder(double a, double b) {
  double result = std::fmod(a, b);
  return result != 0 && (b < 0) != (result < 0) ? result + b : result;
}

double floorDivide(double a, double b) {
  if (b == 0) return a / b;
  double mod = std::fmod(a, b);
  double quotient = (a - mod) / b;
  if (mod != 0 && (b < 0) != (mod < 0)) quotient -= 1;
  if (quotient == 0) return std::copysign(0.0, a / b);
  double floored = std::floor(quotient);
  return quotient - floored > 0.5 ? floored + 1 : floored;
}

double maximum(double a, double b) { return std::isnan(a) || std::isnan(b) ? NAN : std::max(a, b); }
double minimum(double a, double b) { return std::isnan(a) || std::isnan(b) ? NAN : std::min(a, b); }

double unaryReal(PointwiseOp op, double x) {
  switch (op) {
    case PointwiseOp::kAbs: return std::abs(x);
    case PointwiseOp::kNeg: return -x;
    case PointwiseOp::kExp: return std::exp(x);
    case PointwiseOp::kExp2: return std::exp2(x);
    case PointwiseOp::kExpm1: return std::expm1(x);
    case PointwiseOp::kLog: return std::log(x);
    case PointwiseOp::kLog2: return std::log2(x);
    case PointwiseOp::kLog10: return std::log10(x);
    case PointwiseOp::kLog1p: return std::log1p(x);
    case PointwiseOp::kSqrt: return std::sqrt(x);
    case PointwiseOp::kRsqrt: return 1.0 / std::sqrt(x);
    case PointwiseOp::kReciprocal: return 1.0 / x;
    case PointwiseOp::kSin: return std::sin(x);
    case PointwiseOp::kCos: return std::cos(x);
    case PointwiseOp::kTan: return std::tan(x);
    case PointwiseOp::kAsin: return std::asin(x);
    case PointwiseOp::kAcos: return std::acos(x);
    case PointwiseOp::kAtan: return std::atan(x);
    case PointwiseOp::kSinh: return std::sinh(x);
    case PointwiseOp::kCosh: return std::cosh(x);
    case PointwiseOp::kTanh: return std::tanh(x);
    case PointwiseOp::kAsinh: return std::asinh(x);
    case PointwiseOp::kAcosh: return std::acosh(x);
    case PointwiseOp::kAtanh: return std::atanh(x);
    case PointwiseOp::kErf: return std::erf(x);
    case PointwiseOp::kErfc: return std::erfc(x);
    case PointwiseOp::kSigmoid: return 1.0 / (1.0 + std::exp(-x));
    case PointwiseOp::kRelu: return std::isnan(x) ? x : std::max(x, 0.0);
    case PointwiseOp::kFloor: return std::floor(x);
    case PointwiseOp::kCeil: return std::ceil(x);
    case PointwiseOp::kRound: return std::nearbyint(x);
    case PointwiseOp::kTrunc: return std::trunc(x);
    default: return (x > 0) - (x < 0);  // kSign
  }
}

double binaryReal(PointwiseOp op, double a, double b) {
  switch (op) {
    case PointwiseOp::kAdd: return a + b;
    case PointwiseOp::kSub: return a - b;
    case PointwiseOp::kMul: return a * b;
    case PointwiseOp::kDiv: return a / b;
    case PointwiseOp::kFloorDiv: return floorDivide(a, b);
    case PointwiseOp::kRemainder: return pythonRemainder(a, b);
    case PointwiseOp::kFmod: return std::fmod(a, b);
    case PointwiseOp::kPow: return std::pow(a, b);
    case PointwiseOp::kAtan2: return std::atan2(a, b);
    case PointwiseOp::kMaximum: return maximum(a, b);
    default: return minimum(a, b);
  }
}

// Two's complement arithmetic that wraps, like ATen's integers.
int64_t wrappingAdd(int64_t a, int64_t b) { return static_cast<int64_t>(uint64_t(a) + uint64_t(b)); }
int64_t wrappingMul(int64_t a, int64_t b) { return static_cast<int64_t>(uint64_t(a) * uint64_t(b)); }

int64_t integerDivide(int64_t a, int64_t b) { return b == 0 ? 0 : b == -1 ? wrappingMul(a, -1) : a / b; }

int64_t integerFloorDivide(int64_t a, int64_t b) {
  int64_t quotient = integerDivide(a, b);
  return b != 0 && wrappingMul(quotient, b) != a && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

// Shifts by the width or more (or by a negative count) give 0, or the sign, as ATen defines them.
int64_t shiftLeft(int64_t a, int64_t by, DType dtype) {
  bool isOutside = by < 0 || by >= static_cast<int64_t>(8 * sizeInBytes(dtype));
  return isOutside ? 0 : static_cast<int64_t>(uint64_t(a) << by);
}

int64_t shiftRight(int64_t a, int64_t by, DType dtype) {
  bool isOutside = by < 0 || by >= static_cast<int64_t>(8 * sizeInBytes(dtype));
  return isOutside ? (a < 0 ? -1 : 0) : a >> by;
}

int64_t power(int64_t base, int64_t exponent) {
  if (exponent < 0) return base == 1 ? 1 : base == -1 ? (exponent % 2 ? -1 : 1) : 0;
  int64_t result = 1;
  for (; exponent > 0; exponent >>= 1, base = wrappingMul(base, base)) {
    if (exponent & 1) result = wrappingMul(result, base);
  }
  return result;
}

int64_t unaryInteger(PointwiseOp op, int64_t x) {
  switch (op) {
    case PointwiseOp::kAbs: return x < 0 ? wrappingMul(x, -1) : x;
    case PointwiseOp::kNeg: return wrappingMul(x, -1);
    case PointwiseOp::kRelu: return std::max<int64_t>(x, 0);
    case PointwiseOp::kSign: return (x > 0) - (x < 0);
    case PointwiseOp::kBitwiseNot: return ~x;
    default: return x;  // floor, ceil, round, trunc
  }
}

int64_t binaryInteger(PointwiseOp op, int64_t a, int64_t b, DType dtype) {
  switch (op) {
    case PointwiseOp::kAdd: return wrappingAdd(a, b);
    case PointwiseOp::kSub: return wrappingAdd(a, wrappingMul(b, -1));
    case PointwiseOp::kMul: return wrappingMul(a, b);
    case PointwiseOp::kDiv: return integerDivide(a, b);
    case PointwiseOp::kFloorDiv: return integerFloorDivide(a, b);
    case PointwiseOp::kRemainder: return wrappingAdd(a, wrappingMul(-1, wrappingMul(integerFloorDivide(a, b), b)));
    case PointwiseOp::kFmod: return wrappingAdd(a, wrappingMul(-1, wrappingMul(integerDivide(a, b), b)));
    case PointwiseOp::kPow: return power(a, b);
    case PointwiseOp::kMaximum: return std::max(a, b);
    case PointwiseOp::kMinimum: return std::min(a, b);
    case PointwiseOp::kBitwiseAnd: return a & b;
    case PointwiseOp::kBitwiseOr: return a | b;
    case PointwiseOp::kBitwiseXor: return a ^ b;
    case PointwiseOp::kShiftLeft: return shiftLeft(a, b, dtype);
    default: return shiftRight(a, b, dtype);
  }
}

template <typename T>
bool compare(PointwiseOp op, T a, T b) {
  switch (op) {
    case PointwiseOp::kEq: return a == b;
    case PointwiseOp::kNe: return a != b;
    case PointwiseOp::kLt: return a < b;
    case PointwiseOp::kLe: return a <= b;
    case PointwiseOp::kGt: return a > b;
    default: return a >= b;
  }
}

bool applyLogic(PointwiseOp op, std::span<const Scalar> in) {
  bool a = in[0].integer != 0;
  bool b = in.back().integer != 0;
  switch (op) {
    case PointwiseOp::kLogicalNot: return !a;
    case PointwiseOp::kLogicalAnd: return a && b;
    case PointwiseOp::kLogicalOr: return a || b;
    default: return a != b;
  }
}

bool isLogic(PointwiseOp op) {
  return op == PointwiseOp::kLogicalNot || (op >= PointwiseOp::kLogicalAnd && op <= PointwiseOp::kLogicalXor);
}

double fusedMultiplyAdd(double a, double b, double c, DType dtype) {
  return dtype == DType::kF32 ? std::fmaf(float(a), float(b), float(c)) : std::fma(a, b, c);
}

}  // namespace

Scalar loadScalar(const void* base, DType dtype, int64_t index) {
  switch (dtype) {
    case DType::kBool: return boolean(static_cast<const uint8_t*>(base)[index] != 0);
    case DType::kU8: return loadInteger<uint8_t>(base, index);
    case DType::kI8: return loadInteger<int8_t>(base, index);
    case DType::kI16: return loadInteger<int16_t>(base, index);
    case DType::kI32: return loadInteger<int32_t>(base, index);
    case DType::kI64: return loadInteger<int64_t>(base, index);
    case DType::kF16: return {.real = halfToDouble(static_cast<const uint16_t*>(base)[index])};
    case DType::kBF16: return {.real = std::bit_cast<float>(uint32_t{static_cast<const uint16_t*>(base)[index]} << 16)};
    case DType::kF32: return {.real = static_cast<const float*>(base)[index]};
    default: return {.real = static_cast<const double*>(base)[index]};
  }
}

void storeScalar(void* base, DType dtype, int64_t index, Scalar value) {
  switch (dtype) {
    case DType::kBool: return storeAs<uint8_t>(base, index, value.integer != 0);
    case DType::kU8: return storeAs(base, index, static_cast<uint8_t>(value.integer));
    case DType::kI8: return storeAs(base, index, static_cast<int8_t>(value.integer));
    case DType::kI16: return storeAs(base, index, static_cast<int16_t>(value.integer));
    case DType::kI32: return storeAs(base, index, static_cast<int32_t>(value.integer));
    case DType::kI64: return storeAs(base, index, value.integer);
    case DType::kF16: return storeAs(base, index, doubleToHalf(value.real));
    case DType::kBF16: {
      auto rounded = static_cast<float>(roundReal(value.real, DType::kBF16));
      return storeAs(base, index, static_cast<uint16_t>(std::bit_cast<uint32_t>(rounded) >> 16));
    }
    case DType::kF32: return storeAs(base, index, static_cast<float>(value.real));
    default: return storeAs(base, index, value.real);
  }
}

Scalar convertScalar(Scalar value, DType from, DType to) {
  bool fromReal = isFloat(from);
  if (to == DType::kBool) return boolean(fromReal ? value.real != 0 : value.integer != 0);
  if (isFloat(to)) return real(fromReal ? value.real : static_cast<double>(value.integer), to);
  if (!fromReal) return integer(value.integer, to);
  bool fits = std::abs(value.real) < 0x1p63;
  return integer(fits ? static_cast<int64_t>(value.real) : std::numeric_limits<int64_t>::min(), to);
}

Scalar constantScalar(double value, DType dtype) { return convertScalar({.real = value}, DType::kF64, dtype); }

Scalar applyScalar(PointwiseOp op, DType dtype, DType inputDType, std::span<const Scalar> in) {
  if (op == PointwiseOp::kWhere) return in[0].integer ? in[1] : in[2];
  if (op == PointwiseOp::kCast) return convertScalar(in[0], inputDType, dtype);
  if (op == PointwiseOp::kIsNan) return boolean(std::isnan(in[0].real));
  if (op == PointwiseOp::kIsInf) return boolean(std::isinf(in[0].real));
  if (isLogic(op)) return boolean(applyLogic(op, in));
  if (op >= PointwiseOp::kEq && op <= PointwiseOp::kGe) {
    return boolean(isFloat(inputDType) ? compare(op, in[0].real, in[1].real)
                                       : compare(op, in[0].integer, in[1].integer));
  }
  if (isFloat(dtype)) {
    if (op == PointwiseOp::kFma) return real(fusedMultiplyAdd(in[0].real, in[1].real, in[2].real, dtype), dtype);
    return real(in.size() == 1 ? unaryReal(op, in[0].real) : binaryReal(op, in[0].real, in[1].real), dtype);
  }
  if (op == PointwiseOp::kFma) {
    return integer(wrappingAdd(wrappingMul(in[0].integer, in[1].integer), in[2].integer), dtype);
  }
  return integer(
      in.size() == 1 ? unaryInteger(op, in[0].integer) : binaryInteger(op, in[0].integer, in[1].integer, dtype), dtype);
}

Scalar reductionIdentity(PointwiseOp op, DType dtype) {
  constexpr int64_t kLowest = std::numeric_limits<int64_t>::min();
  constexpr int64_t kHighest = std::numeric_limits<int64_t>::max();
  switch (op) {
    case PointwiseOp::kReduceProd: return {.real = 1, .integer = 1};
    case PointwiseOp::kReduceMax: return {.real = -INFINITY, .integer = kLowest};
    case PointwiseOp::kReduceMin: return {.real = INFINITY, .integer = kHighest};
    default: return {};
  }
}

Scalar combineScalars(PointwiseOp op, DType dtype, Scalar accumulator, Scalar element) {
  PointwiseOp step = op == PointwiseOp::kReduceSum    ? PointwiseOp::kAdd
                     : op == PointwiseOp::kReduceProd ? PointwiseOp::kMul
                     : op == PointwiseOp::kReduceMax  ? PointwiseOp::kMaximum
                                                      : PointwiseOp::kMinimum;
  // Sums and products accumulate in double and round once, at the end of the row.
  if (isFloat(dtype)) return {.real = binaryReal(step, accumulator.real, element.real)};
  return {.integer = binaryInteger(step, accumulator.integer, element.integer, DType::kI64)};
}

}  // namespace agspeed::backends::reference
