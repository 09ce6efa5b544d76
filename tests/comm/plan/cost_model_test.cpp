// SPDX-License-Identifier: Apache-2.0
#include "comm/plan/cost_model.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace agspeed::comm::plan {
namespace {

TEST(CostModel, MoreOfAnythingTakesLonger) {
  const NetworkMeasurement network;
  const schedule::ScheduleCounts counts{.numRounds = 2, .numMessages = 6, .sent = 1.5, .received = 1.5, .reduced = 1};
  const double base = predictSeconds(counts, 1e6, 4, network);
  schedule::ScheduleCounts rounds = counts, messages = counts, bytes = counts;
  rounds.numRounds = 3;
  messages.numMessages = 12;
  bytes.sent = 2;
  for (const schedule::ScheduleCounts& more : {rounds, messages, bytes})
    EXPECT_GT(predictSeconds(more, 1e6, 4, network), base);
  EXPECT_GT(predictSeconds(counts, 2e6, 4, network), base);
}

/// Returns the algorithm that a group on that network uses for an all-reduce of `bytes`.
const schedule::Algorithm& fittedFor(const NetworkMeasurement& network, int numRanks, size_t bytes) {
  Plan plan;
  plan.rules = fitToNetwork(countAllReduces(numRanks), network, numRanks);
  return *plan.choose(schedule::Collective::kAllReduce, bytes, numRanks, false).algorithm;
}

const schedule::Algorithm& usualFor(int numRanks, size_t bytes) {
  return *Plan{}.choose(schedule::Collective::kAllReduce, bytes, numRanks, false).algorithm;
}

TEST(CostModel, WhereMessagesTakeLongFewRoundsWin) {
  const NetworkMeasurement far{.latencySeconds = 1e-3};
  for (const int numRanks : {4, 8, 16}) {
    const auto costs = verify(fittedFor(far, numRanks, 32 * 1024), numRanks).value();
    EXPECT_LT(costs.numRounds, verify(usualFor(numRanks, 32 * 1024), numRanks)->numRounds) << numRanks << " ranks";
  }
}

TEST(CostModel, WhereBytesTakeLongFewBytesWin) {
  const NetworkMeasurement slow{.bytesPerSecond = 1e7};
  for (const int numRanks : {4, 8}) {
    const auto costs = verify(fittedFor(slow, numRanks, 8 * 1024), numRanks).value();
    EXPECT_LT(costs.sent, verify(usualFor(numRanks, 8 * 1024), numRanks)->sent) << numRanks << " ranks";
  }
}

TEST(CostModel, LongBuffersAreLeftToThePlan) {
  const NetworkMeasurement far{.latencySeconds = 1e-3};
  EXPECT_EQ(&fittedFor(far, 4, size_t{64} << 20), &usualFor(4, size_t{64} << 20));
}

TEST(CostModel, NoChoiceIsPredictedToTakeLongerThanThePlansOwn) {
  const int seed = 5;
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> exponent(-1, 1);
  for (const int numRanks : {3, 4, 6, 8, 13, 16}) {
    const std::vector<CountedAlgorithm> counted = countAllReduces(numRanks);
    for (int round = 0; round < 50; ++round) {
      const NetworkMeasurement network{.latencySeconds = 1e-4 * std::pow(20, exponent(random)),
                                       .bytesPerSecond = 1e8 * std::pow(100, exponent(random))};
      Plan plan;
      plan.rules = fitToNetwork(counted, network, numRanks);
      // Up to one segment, for which predictions are simplest.
      for (size_t bytes = 256; bytes <= plan.segmentBytes; bytes *= 2) {
        const auto seconds = [&](const Plan& by) {
          const schedule::Algorithm* chosen =
              by.choose(schedule::Collective::kAllReduce, bytes, numRanks, false).algorithm;
          const auto at = std::find_if(counted.begin(), counted.end(),
                                       [&](const CountedAlgorithm& each) { return each.algorithm == chosen; });
          return predictSeconds(at->counts, static_cast<double>(bytes), 1, network);
        };
        EXPECT_LE(seconds(plan), seconds({}))
            << "seed " << seed << ", round " << round << ": " << numRanks << " ranks, " << bytes << " bytes";
      }
    }
  }
}

TEST(CostModel, LargeGroupsAreNotCounted) {
  EXPECT_TRUE(countAllReduces(1000).empty());
  EXPECT_TRUE(fitToNetwork({}, {}, 1000).empty());
}

}  // namespace
}  // namespace agspeed::comm::plan
