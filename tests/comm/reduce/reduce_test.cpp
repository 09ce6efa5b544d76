// SPDX-License-Identifier: Apache-2.0
// Compares the kernels bit for bit with scalar loops that follow the canonical tree, and compares them with f64 sums.
#include "comm/reduce/reduce.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

namespace agspeed::comm::reduce {
namespace {

/// Elements in their storage type, with the arithmetic of their accumulator.
template <typename T>
struct Native {
  using Stored = T;
  using Wide = T;
  static Wide widen(Stored value) { return value; }
  static Stored narrow(Wide value) { return value; }
};
struct HalfFloat {
  using Stored = uint16_t;
  using Wide = float;
  static Wide widen(Stored value) { return static_cast<float>(std::bit_cast<_Float16>(value)); }
  static Stored narrow(Wide value) { return std::bit_cast<uint16_t>(static_cast<_Float16>(value)); }
};
struct BrainFloat {
  using Stored = uint16_t;
  using Wide = float;
  static Wide widen(Stored value) { return std::bit_cast<float>(uint32_t{value} << 16); }
  static Stored narrow(Wide value) {
    if (std::isnan(value)) return static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16 | 0x40);
    const auto bits = std::bit_cast<uint32_t>(value);
    const uint32_t down = bits & 0xffff0000u, rest = bits & 0xffffu;
    const bool goesUp = rest > 0x8000u || (rest == 0x8000u && (bits & 0x10000u));
    return static_cast<uint16_t>((down + (goesUp ? 0x10000u : 0u)) >> 16);
  }
};

template <typename W>
W combine(ReduceOp op, W a, W b) {
  if constexpr (std::is_integral_v<W>) {
    if (op == ReduceOp::kBitAnd) return a & b;
    if (op == ReduceOp::kBitOr) return a | b;
    if (op == ReduceOp::kBitXor) return a ^ b;
    W wrapped{};
    if (op == ReduceOp::kProduct) return __builtin_mul_overflow(a, b, &wrapped), wrapped;
    if (op != ReduceOp::kMin && op != ReduceOp::kMax) return __builtin_add_overflow(a, b, &wrapped), wrapped;
  } else {
    if (op != ReduceOp::kMin && op != ReduceOp::kMax) return op == ReduceOp::kProduct ? a * b : a + b;
    if (std::isnan(a) || std::isnan(b)) return std::isnan(b) ? b : a;
  }
  return op == ReduceOp::kMin ? (b < a ? b : a) : (b > a ? b : a);
}

template <typename Type>
std::vector<std::vector<typename Type::Stored>> randomInputs(int numInputs, size_t count, std::mt19937_64& random) {
  std::vector<std::vector<typename Type::Stored>> inputs(static_cast<size_t>(numInputs));
  std::normal_distribution<double> normal(0, 8);
  for (auto& input : inputs) {
    for (size_t i = 0; i < count; ++i) {
      if constexpr (std::is_integral_v<typename Type::Wide>) {
        input.push_back(static_cast<typename Type::Stored>(random()));
      } else {
        const double value = random() % 50 ? normal(random) : NAN;
        input.push_back(Type::narrow(static_cast<typename Type::Wide>(value)));
      }
    }
  }
  return inputs;
}

template <typename Type>
void compare(DType dtype, ReduceOp op, int numInputs, size_t count, std::mt19937_64& random) {
  using Stored = typename Type::Stored;
  using Wide = typename Type::Wide;
  const auto inputs = randomInputs<Type>(numInputs, count, random);
  std::vector<Operand> operands;
  for (const auto& input : inputs) operands.push_back({reinterpret_cast<const std::byte*>(input.data()), false});
  const int divisor = op == ReduceOp::kAverage ? numInputs : 1;
  std::vector<Stored> result(count);
  std::vector<Wide> wide(count);
  reduce(reinterpret_cast<std::byte*>(result.data()), false, operands, count, {dtype, op, divisor});
  reduce(reinterpret_cast<std::byte*>(wide.data()), true, operands, count, {dtype, op, divisor});
  for (size_t i = 0; i < count; ++i) {
    Wide expected = foldCanonically(
        numInputs, [&](int leaf) { return Type::widen(inputs[static_cast<size_t>(leaf)][i]); },
        [&](Wide a, Wide b) { return combine(op, a, b); });
    if constexpr (std::is_integral_v<Wide>) {
      expected = static_cast<Wide>(int64_t{expected} / divisor);
    } else if (divisor != 1) {
      expected /= static_cast<Wide>(divisor);
    }
    const Stored narrow = Type::narrow(expected);
    if (expected != expected) {
      ASSERT_NE(wide[i], wide[i]);
      ASSERT_NE(Type::widen(result[i]), Type::widen(result[i]));
      continue;
    }
    ASSERT_EQ(std::memcmp(&wide[i], &expected, sizeof expected), 0) << "element " << i;
    ASSERT_EQ(std::memcmp(&result[i], &narrow, sizeof narrow), 0) << "element " << i;
  }
}

template <typename Type>
void compareAll(DType dtype) {
  const uint64_t seed = std::random_device{}();
  std::mt19937_64 random(seed);
  for (uint8_t index = 0; index <= static_cast<uint8_t>(ReduceOp::kPremultipliedSum); ++index) {
    const auto op = static_cast<ReduceOp>(index);
    if (!checkReduction(op, dtype).isOk()) continue;
    for (int numInputs : {1, 2, 3, 4, 5, 7, 8, 13, 17}) {
      for (size_t count : {size_t{0}, size_t{1}, size_t{3}, size_t{17}, size_t{1023}, 1 + random() % 6000}) {
        SCOPED_TRACE("seed " + std::to_string(seed) + ", " + std::string(toString(dtype)) + " " +
                     std::string(toString(op)) + ", inputs " + std::to_string(numInputs) + ", count " +
                     std::to_string(count));
        compare<Type>(dtype, op, numInputs, count, random);
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

template <typename T>
void compareAveragesOfManyRanks(DType dtype) {
  std::mt19937_64 random(11);
  for (const int numRanks : {127, 128, 200, 255, 256, 257, 512}) {
    SCOPED_TRACE(std::string(toString(dtype)) + " of " + std::to_string(numRanks) + " ranks");
    compare<Native<T>>(dtype, ReduceOp::kAverage, numRanks, 1000, random);
  }
}

TEST(Reduce, F64FollowsTheCanonicalTree) { compareAll<Native<double>>(DType::kF64); }
TEST(Reduce, F32FollowsTheCanonicalTree) { compareAll<Native<float>>(DType::kF32); }
TEST(Reduce, F16IsAccumulatedInF32) { compareAll<HalfFloat>(DType::kF16); }
TEST(Reduce, BF16IsAccumulatedInF32) { compareAll<BrainFloat>(DType::kBF16); }
TEST(Reduce, I8Wraps) { compareAll<Native<int8_t>>(DType::kI8); }
TEST(Reduce, U8Wraps) { compareAll<Native<uint8_t>>(DType::kU8); }
TEST(Reduce, I16Wraps) { compareAll<Native<int16_t>>(DType::kI16); }
TEST(Reduce, I32Wraps) { compareAll<Native<int32_t>>(DType::kI32); }
TEST(Reduce, I64Wraps) { compareAll<Native<int64_t>>(DType::kI64); }

TEST(Reduce, AveragesOfIntegersDivideByMoreRanksThanTheirTypeHolds) {
  compareAveragesOfManyRanks<int8_t>(DType::kI8);
  compareAveragesOfManyRanks<uint8_t>(DType::kU8);
  compareAveragesOfManyRanks<int16_t>(DType::kI16);
  compareAveragesOfManyRanks<int32_t>(DType::kI32);
  compareAveragesOfManyRanks<int64_t>(DType::kI64);
}

TEST(Reduce, BoolsStayBools) {
  const uint8_t a[] = {0, 0, 1, 1}, b[] = {0, 1, 0, 1};
  const Operand inputs[] = {{reinterpret_cast<const std::byte*>(a), false},
                            {reinterpret_cast<const std::byte*>(b), false}};
  const auto resultOf = [&](ReduceOp op) {
    std::vector<uint8_t> result(4);
    reduce(reinterpret_cast<std::byte*>(result.data()), false, inputs, 4, {DType::kBool, op});
    return result;
  };
  EXPECT_EQ(resultOf(ReduceOp::kSum), (std::vector<uint8_t>{0, 1, 1, 1}));
  EXPECT_EQ(resultOf(ReduceOp::kProduct), (std::vector<uint8_t>{0, 0, 0, 1}));
  EXPECT_EQ(resultOf(ReduceOp::kBitXor), (std::vector<uint8_t>{0, 1, 1, 0}));
}

TEST(Reduce, TheTargetMayBeAnyInputAndPartialResultsMayBeWide) {
  constexpr size_t kCount = 5000;
  std::mt19937_64 random(7);
  const auto inputs = randomInputs<BrainFloat>(5, kCount, random);
  std::vector<Operand> leaves;
  for (const auto& input : inputs) leaves.push_back({reinterpret_cast<const std::byte*>(input.data()), false});
  std::vector<uint16_t> expected(kCount);
  reduce(reinterpret_cast<std::byte*>(expected.data()), false, leaves, kCount, {DType::kBF16});
  for (size_t own = 0; own < 5; ++own) {
    auto copies = inputs;
    std::vector<Operand> operands;
    for (const auto& copy : copies) operands.push_back({reinterpret_cast<const std::byte*>(copy.data()), false});
    reduce(reinterpret_cast<std::byte*>(copies[own].data()), false, operands, kCount, {DType::kBF16});
    EXPECT_EQ(copies[own], expected) << "into input " << own;
  }
  // Computes ((0+1) + 2) + (3+4) in single merges, in the order of recursive doubling.
  std::vector<float> low(kCount), high(kCount);
  auto* lowBytes = reinterpret_cast<std::byte*>(low.data());
  auto* highBytes = reinterpret_cast<std::byte*>(high.data());
  std::vector<uint16_t> result(kCount);
  const auto pair = [](Operand a, Operand b) { return std::vector<Operand>{a, b}; };
  reduce(lowBytes, true, pair(leaves[0], leaves[1]), kCount, {DType::kBF16});
  reduce(lowBytes, true, pair({lowBytes, true}, leaves[2]), kCount, {DType::kBF16});
  reduce(highBytes, true, pair(leaves[3], leaves[4]), kCount, {DType::kBF16});
  reduce(reinterpret_cast<std::byte*>(result.data()), false, pair({lowBytes, true}, {highBytes, true}), kCount,
         {DType::kBF16});
  EXPECT_EQ(result, expected);
}

TEST(Multiply, ScalesInTheAccumulatorAndSaturatesIntegers) {
  const float floats[] = {1.5f, -2.0f, 0.0f};
  float scaled[3];
  multiply(reinterpret_cast<std::byte*>(scaled), reinterpret_cast<const std::byte*>(floats), 3, DType::kF32, 0.1);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(scaled[i], floats[i] * 0.1f);
  int32_t integers[] = {10, -7, INT32_MAX, INT32_MIN};
  multiply(reinterpret_cast<std::byte*>(integers), reinterpret_cast<const std::byte*>(integers), 4, DType::kI32, 1.5);
  EXPECT_EQ(std::vector<int32_t>(integers, integers + 4), (std::vector<int32_t>{15, -10, INT32_MAX, INT32_MIN}));
  std::vector<uint16_t> halves;
  for (int i = 0; i < 3000; ++i) halves.push_back(HalfFloat::narrow(static_cast<float>(i) * 0.37f));
  auto doubled = halves;
  multiply(reinterpret_cast<std::byte*>(doubled.data()), reinterpret_cast<const std::byte*>(halves.data()), 3000,
           DType::kF16, 0.3);
  for (size_t i = 0; i < 3000; ++i) ASSERT_EQ(doubled[i], HalfFloat::narrow(HalfFloat::widen(halves[i]) * 0.3f)) << i;
}

}  // namespace
}  // namespace agspeed::comm::reduce
