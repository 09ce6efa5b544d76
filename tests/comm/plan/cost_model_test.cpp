// SPDX-License-Identifier: Apache-2.0
#include "comm/plan/cost_model.h"

#include <gtest/gtest.h>

namespace agspeed::comm {
namespace {

TEST(CostModel, MoreOfAnythingTakesLonger) {
  const NetworkMeasurement network;
  const ScheduleCounts counts{.numRounds = 2, .numMessages = 6, .sent = 1.5, .received = 1.5, .reduced = 1};
  const double base = predictSeconds(counts, 1e6, 4, network);
  ScheduleCounts rounds = counts, messages = counts, bytes = counts;
  rounds.numRounds = 3;
  messages.numMessages = 12;
  bytes.sent = 2;
  for (const ScheduleCounts& more : {rounds, messages, bytes}) EXPECT_GT(predictSeconds(more, 1e6, 4, network), base);
  EXPECT_GT(predictSeconds(counts, 2e6, 4, network), base);
}

TEST(CostModel, PlansTakeFewRoundsForShortBuffersAndFewBytesForLongOnes) {
  for (const int numRanks : {2, 4, 8, 16, 32}) {
    const Plan plan = makePlan({}, numRanks, 1);
    const auto costs = [&](size_t bytes) {
      return verify(*plan.choose(Collective::kAllReduce, bytes, numRanks, false).algorithm, numRanks).value();
    };
    EXPECT_LE(costs(256).numRounds, costs(size_t{256} << 20).numRounds) << numRanks << " ranks";
    EXPECT_GE(costs(256).sent, costs(size_t{256} << 20).sent) << numRanks << " ranks";
    EXPECT_NEAR(costs(size_t{256} << 20).sent, 2.0 * (numRanks - 1) / numRanks, 1e-9) << numRanks << " ranks";
  }
}

TEST(CostModel, ASlowNetworkTurnsToFewerBytesEarlier) {
  const auto sentOf = [](double bytesPerSecond) {
    NetworkMeasurement network;
    network.bytesPerSecond = bytesPerSecond;
    const Choice choice = makePlan(network, 8, 1).choose(Collective::kAllReduce, 4096, 8, false);
    return verify(*choice.algorithm, 8).value().sent;
  };
  EXPECT_LT(sentOf(1e7), sentOf(1e10));
}

TEST(CostModel, EqualMeasurementsMakeEqualPlans) {
  const Plan a = makePlan({}, 6, 3), b = makePlan({}, 6, 3);
  ASSERT_EQ(a.rules.size(), b.rules.size());
  for (size_t i = 0; i < a.rules.size(); ++i) {
    EXPECT_EQ(a.rules[i].algorithm, b.rules[i].algorithm);
    EXPECT_EQ(a.rules[i].maxBytes, b.rules[i].maxBytes);
  }
  EXPECT_EQ(a.version, 3u);
  EXPECT_TRUE(makePlan({}, 1000, 3).rules.empty());
}

}  // namespace
}  // namespace agspeed::comm
