// SPDX-License-Identifier: Apache-2.0
#include "comm/plan/plan.h"

#include <gtest/gtest.h>

namespace agspeed::comm::plan {
namespace {

TEST(Plan, EveryCollectiveHasAnAlgorithmAtEverySize) {
  const Plan plan;
  for (const schedule::Algorithm& algorithm : schedule::algorithms()) {
    for (const int numRanks : {1, 2, 5, 9, 64, 256}) {
      for (size_t bytes = 0; bytes < (size_t{1} << 32); bytes = bytes * 4 + 1) {
        const Choice choice = plan.choose(algorithm.collective, bytes, numRanks, false);
        ASSERT_NE(choice.algorithm, nullptr) << toString(algorithm.collective) << ", " << bytes << " bytes";
        EXPECT_EQ(choice.algorithm->collective, algorithm.collective);
        EXPECT_EQ(choice.algorithm->order, schedule::Order::kCanonical);
        EXPECT_EQ(choice.segmentBytes % 256, 0u);
        EXPECT_GT(choice.segmentBytes, 0u);
      }
    }
  }
}

TEST(Plan, LongAllReducesTakeTheLeastBytesAndShortOnesTheFewestRounds) {
  const Plan plan;
  EXPECT_EQ(plan.choose(schedule::Collective::kAllReduce, 1024, 4, false).algorithm->name, "exchange");
  EXPECT_EQ(plan.choose(schedule::Collective::kAllReduce, 1024, 64, false).algorithm->name, "doubling");
  EXPECT_EQ(plan.choose(schedule::Collective::kAllReduce, 64 << 20, 4, false).algorithm->name, "direct");
}

TEST(Plan, ShortChunksAmongManyRanksTakeFewMessages) {
  const Plan plan;
  EXPECT_EQ(plan.choose(schedule::Collective::kAllReduce, 1 << 20, 256, false).algorithm->name, "halving");
  EXPECT_EQ(plan.choose(schedule::Collective::kAllReduce, 1 << 20, 16, false).algorithm->name, "direct");
  EXPECT_EQ(plan.choose(schedule::Collective::kAllGather, 24 * 256, 256, true).algorithm->name, "dissemination");
  EXPECT_EQ(plan.choose(schedule::Collective::kAllGather, 24 * 256, 256, false).algorithm->name, "direct");
}

TEST(Plan, TheFirstRuleThatFitsHolds) {
  Plan plan;
  plan.rules = {{schedule::Collective::kAllReduce, 100, "doubling", 0},
                {schedule::Collective::kAllReduce, 1000, "halving", 4096}};
  EXPECT_EQ(plan.choose(schedule::Collective::kAllReduce, 100, 4, false).algorithm->name, "doubling");
  EXPECT_EQ(plan.choose(schedule::Collective::kAllReduce, 101, 4, false).algorithm->name, "halving");
  EXPECT_EQ(plan.choose(schedule::Collective::kAllReduce, 101, 4, false).segmentBytes, 4096u);
  EXPECT_EQ(plan.choose(schedule::Collective::kAllReduce, 1001, 4, false).algorithm->name, "exchange");
}

TEST(Plan, RulesThatCannotHoldArePassedOver) {
  Plan plan;
  plan.rules = {{schedule::Collective::kAllReduce, SIZE_MAX, "ring", 0},
                {schedule::Collective::kAllReduce, SIZE_MAX, "no such", 0},
                {schedule::Collective::kAllGather, SIZE_MAX, "dissemination", 0}};
  EXPECT_EQ(plan.choose(schedule::Collective::kAllReduce, 100, 4, false).algorithm->name, "exchange");
  EXPECT_EQ(plan.choose(schedule::Collective::kAllGather, 100, 4, false).algorithm->name, "direct");
  EXPECT_EQ(plan.choose(schedule::Collective::kAllGather, 100, 4, true).algorithm->name, "dissemination");
  plan.isReproducible = false;
  EXPECT_EQ(plan.choose(schedule::Collective::kAllReduce, 100, 4, false).algorithm->name, "ring");
}

TEST(Plan, SharesApplyWhereEveryRankOwnsAChunk) {
  Plan plan;
  plan.shares = {2, 1, 2, 2};
  EXPECT_EQ(plan.choose(schedule::Collective::kAllReduce, 64 << 20, 4, false).shares, plan.shares);
  EXPECT_TRUE(plan.choose(schedule::Collective::kAllReduce, 64, 4, false).shares.empty());
  EXPECT_TRUE(plan.choose(schedule::Collective::kAllReduce, 64 << 20, 3, false).shares.empty());
}

}  // namespace
}  // namespace agspeed::comm::plan
