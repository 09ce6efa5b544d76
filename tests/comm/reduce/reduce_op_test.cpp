// SPDX-License-Identifier: Apache-2.0
#include "comm/reduce/reduce_op.h"

#include <gtest/gtest.h>

#include <string>

namespace agspeed::comm::reduce {
namespace {

std::string treeOf(int numLeaves) {
  return foldCanonically(
      numLeaves, [](int leaf) { return std::to_string(leaf); },
      [](const std::string& left, const std::string& right) { return "(" + left + "+" + right + ")"; });
}

TEST(CanonicalTree, PairsTheFirstRanksAndBalancesTheRest) {
  EXPECT_EQ(treeOf(1), "0");
  EXPECT_EQ(treeOf(2), "(0+1)");
  EXPECT_EQ(treeOf(3), "((0+1)+2)");
  EXPECT_EQ(treeOf(4), "((0+1)+(2+3))");
  EXPECT_EQ(treeOf(5), "(((0+1)+2)+(3+4))");
  EXPECT_EQ(treeOf(6), "(((0+1)+(2+3))+(4+5))");
  EXPECT_EQ(treeOf(7), "(((0+1)+(2+3))+((4+5)+6))");
}

TEST(CanonicalTree, PositionsAndLeavesAreInverse) {
  for (int numLeaves = 1; numLeaves < 70; ++numLeaves) {
    const CanonicalTree tree(numLeaves);
    for (int leaf = 0; leaf < numLeaves; ++leaf) {
      const int position = tree.positionOf(leaf);
      ASSERT_LT(position, tree.numPositions);
      ASSERT_TRUE(tree.firstLeaf(position) == leaf || (tree.isPair(position) && tree.firstLeaf(position) + 1 == leaf))
          << leaf << " of " << numLeaves;
    }
  }
}

TEST(ReduceOp, WhatIsNotDefinedSaysSo) {
  EXPECT_TRUE(checkReduction(ReduceOp::kSum, DType::kBool).isOk());
  EXPECT_TRUE(checkReduction(ReduceOp::kBitXor, DType::kI64).isOk());
  EXPECT_TRUE(checkReduction(ReduceOp::kAverage, DType::kI32).isOk());
  for (const auto& [op, dtype] :
       {std::pair{ReduceOp::kBitOr, DType::kF32}, {ReduceOp::kAverage, DType::kBool}, {ReduceOp::kSum, DType::kC64}}) {
    const Status status = checkReduction(op, dtype);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(toString(op)), std::string::npos) << status.toString();
    EXPECT_NE(status.message().find(toString(dtype)), std::string::npos) << status.toString();
  }
}

}  // namespace
}  // namespace agspeed::comm::reduce
