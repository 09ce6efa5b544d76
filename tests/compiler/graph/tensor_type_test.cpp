// SPDX-License-Identifier: Apache-2.0
#include "compiler/graph/tensor_type.h"

#include <gtest/gtest.h>

namespace agspeed::compiler {
namespace {

SymExpr expr(const char* text) { return *SymExpr::parse(text); }

TEST(SameValue, SeesThroughTheWayAPolynomialIsWritten) {
  EXPECT_TRUE(sameValue(expr("s0 * (s1 + 2)"), expr("2 * s0 + s1 * s0")));
  EXPECT_TRUE(sameValue(expr("s0 * 4 // 4"), expr("s0")));
  EXPECT_FALSE(sameValue(expr("s0 * s1"), expr("s0 * s0")));
  EXPECT_FALSE(sameValue(expr("s0"), expr("64")));
  EXPECT_FALSE(sameValue(expr("min(s0, 1000)"), expr("s0")));
}

TEST(TensorType, ContiguityIgnoresStridesOfSizeOne) {
  TensorType type{DType::kF32, {4, 1, 8}, {8, 77, 1}};
  EXPECT_TRUE(isContiguous(type));
  type.strides = {16, 77, 1};
  EXPECT_FALSE(isContiguous(type));
  EXPECT_TRUE(isContiguousFrom(type, 1));
}

TEST(TensorType, BroadcastsFromTheRight) {
  EXPECT_TRUE(sameDims(broadcastDims({8}, {4, 1}), {4, 8}));
  EXPECT_TRUE(sameDims(broadcastDims({expr("s0"), 1}, {8}), {expr("s0"), 8}));
  EXPECT_TRUE(sameDims(broadcastDims({}, {3}), {3}));
}

TEST(TensorType, PrintsStridesOnlyWhenTheyAreNotContiguous) {
  EXPECT_EQ(contiguousType(DType::kBF16, {2, 3}).toString(), "bf16[2,3]");
  EXPECT_EQ((TensorType{DType::kF32, {2, 3}, {1, 2}}.toString()), "f32[2,3]{1,2}");
}

TEST(Estimate, UsesHintsAndADefault) {
  std::vector<int64_t> hints = {7};
  EXPECT_EQ(estimate(expr("2 * s0"), hints), 14);
  EXPECT_EQ(estimate(expr("s3"), hints), 64);
}

}  // namespace
}  // namespace agspeed::compiler
