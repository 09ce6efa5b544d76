// SPDX-License-Identifier: Apache-2.0
#include "compiler/import/promotion.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

namespace agspeed::compiler {
namespace {

enum class Category { kBool, kInteger, kFloat, kComplex };

Category categoryOf(DType dtype) {
  if (dtype == DType::kBool) return Category::kBool;
  if (isInteger(dtype)) return Category::kInteger;
  return isFloat(dtype) ? Category::kFloat : Category::kComplex;
}

DType promoteIntegers(DType a, DType b) {
  DType wide = std::max(a, b);  // the enum lists integers by width
  bool mixesSign = a != b && std::min(a, b) == DType::kU8;
  return mixesSign && wide == DType::kI8 ? DType::kI16 : wide;
}

DType promoteFloats(DType a, DType b) {
  bool areBothHalves = a != b && std::max(a, b) == DType::kBF16;
  return areBothHalves ? DType::kF32 : std::max(a, b);
}

// Python numbers and 0-d tensors matter only if they raise the category; a number then counts as its default dtype.
DType defaultOf(DType dtype) { return isFloat(dtype) ? DType::kF32 : dtype; }

double roundMantissa(double value, int bits) {
  if (value == 0 || !std::isfinite(value)) return value;
  int exponent = 0;
  std::frexp(value, &exponent);
  double unit = std::ldexp(1.0, exponent - bits);
  return std::nearbyint(value / unit) * unit;
}

double roundToHalf(double value) {
  double magnitude = std::abs(value);
  if (magnitude < 0x1p-14) return std::nearbyint(value * 0x1p24) * 0x1p-24;
  double rounded = roundMantissa(value, 11);
  return std::abs(rounded) > 65504.0 ? std::copysign(INFINITY, value) : rounded;
}

}  // namespace

std::optional<DType> promote(DType a, DType b) {
  Category x = categoryOf(a);
  Category y = categoryOf(b);
  if (x == Category::kComplex || y == Category::kComplex) return std::nullopt;
  if (x != y) return x > y ? a : b;
  return x == Category::kFloat ? promoteFloats(a, b) : x == Category::kInteger ? promoteIntegers(a, b) : a;
}

std::optional<DType> resultType(std::span<const PromotionInput> inputs) {
  std::optional<DType> byRank[3];
  for (const PromotionInput& input : inputs) {
    if (categoryOf(input.dtype) == Category::kComplex) return std::nullopt;
    std::optional<DType>& slot = byRank[static_cast<size_t>(input.rank)];
    DType dtype = input.rank == PromotionInput::Rank::kNumber ? defaultOf(input.dtype) : input.dtype;
    slot = slot ? promote(*slot, dtype) : dtype;
  }
  std::optional<DType> result = byRank[2];
  for (int rank = 1; rank >= 0; --rank) {
    if (!byRank[rank]) continue;
    if (!result || categoryOf(*byRank[rank]) > categoryOf(*result)) result = byRank[rank];
  }
  return result;
}

DType computeType(DType dtype) { return dtype == DType::kBF16 || dtype == DType::kF16 ? DType::kF32 : dtype; }

double roundTo(DType dtype, double value) {
  if (dtype == DType::kF16) return roundToHalf(value);
  if (dtype != DType::kBF16 && dtype != DType::kF32) return value;
  auto single = static_cast<float>(value);
  if (dtype == DType::kF32 || !std::isfinite(single)) return single;
  auto bits = std::bit_cast<uint32_t>(single);
  bits = (bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u;
  return std::bit_cast<float>(bits);
}

}  // namespace agspeed::compiler
