// SPDX-License-Identifier: Apache-2.0
#include "runtime/tune/measure/statistics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace agspeed::runtime::tune {
namespace {

TEST(Quantile, InterpolatesBetweenOrderStatistics) {
  EXPECT_DOUBLE_EQ(quantile({3, 1, 2}, 0.5), 2);
  EXPECT_DOUBLE_EQ(quantile({4, 1, 3, 2}, 0.5), 2.5);
  EXPECT_DOUBLE_EQ(quantile({1, 2, 3, 4, 5}, 0.25), 2);
  EXPECT_DOUBLE_EQ(quantile({7}, 0.9), 7);
  EXPECT_DOUBLE_EQ(quantile({5, 1}, 1), 5);
}

TEST(TwoSidedNormalQuantile, MatchesTheTables) {
  EXPECT_NEAR(twoSidedNormalQuantile(0.95), 1.95996, 1e-4);
  EXPECT_NEAR(twoSidedNormalQuantile(0.99), 2.57583, 1e-4);
  EXPECT_NEAR(twoSidedNormalQuantile(0.999), 3.29053, 1e-4);
}

TEST(MedianInterval, IsUnboundedWhileTooFewValuesWereSeen) {
  EXPECT_FALSE(medianInterval(std::vector<double>(10, 1.0), 0.99).isBounded());
  EXPECT_TRUE(medianInterval(std::vector<double>(11, 1.0), 0.99).isBounded());
  EXPECT_EQ(medianInterval({}, 0.99).count, 0);
}

TEST(MedianInterval, CoversTheTrueMedianOfHeavyTails) {
  constexpr int kTrials = 2000;
  std::mt19937_64 random(11);
  std::cauchy_distribution<double> cauchy(5, 1);
  int numCovered = 0;
  for (int trial = 0; trial < kTrials; ++trial) {
    std::vector<double> values(40);
    for (double& value : values) value = cauchy(random);
    const Interval interval = medianInterval(values, 0.95);
    numCovered += interval.low <= 5 && 5 <= interval.high ? 1 : 0;
  }
  EXPECT_GE(numCovered, kTrials * 0.93) << "seed 11, 40 Cauchy values";
}

TEST(SumRatioInterval, SeesRareSlowSteps) {
  std::vector<std::pair<double, double>> pairs;
  for (int i = 0; i < 100; ++i) pairs.emplace_back(1.0, i % 5 == 0 ? 4.0 : 0.9);
  const Interval interval = sumRatioInterval(pairs, 0.99);
  EXPECT_NEAR(interval.estimate, 1.52, 1e-9);
  EXPECT_GT(interval.low, 1.1);
}

TEST(SumRatioInterval, IsTheSameEveryTime) {
  std::vector<std::pair<double, double>> pairs;
  for (int i = 0; i < 50; ++i) pairs.emplace_back(1.0 + 0.01 * (i % 7), 1.1 + 0.02 * (i % 3));
  const Interval first = sumRatioInterval(pairs, 0.99);
  const Interval second = sumRatioInterval(pairs, 0.99);
  EXPECT_EQ(first.low, second.low);
  EXPECT_EQ(first.high, second.high);
}

TEST(DifferenceLow, AddsTheDistancesInSquares) {
  const Interval a{.low = 0.97, .estimate = 1.00, .high = 1.05, .count = 20};
  const Interval b{.low = 0.88, .estimate = 0.90, .high = 0.94, .count = 20};
  EXPECT_NEAR(differenceLow(a, b), 0.10 - 0.05, 1e-12);
  EXPECT_NEAR(differenceLow(b, a), -0.10 - std::hypot(0.02, 0.05), 1e-12);
}

TEST(DifferenceLow, IsUnboundedWhileAnIntervalIs) {
  const Interval bounded{.low = 0.97, .estimate = 1.00, .high = 1.05, .count = 20};
  const Interval wide = medianInterval({1.0, 1.1}, 0.9);
  EXPECT_EQ(differenceLow(bounded, wide), -std::numeric_limits<double>::infinity());
}

TEST(RollingWindow, KeepsTheNewestValues) {
  RollingWindow window(3);
  for (const double value : {9.0, 9.0, 1.0, 2.0, 3.0}) window.add(value);
  EXPECT_EQ(window.size(), 3u);
  EXPECT_DOUBLE_EQ(window.median(), 2);
}

}  // namespace
}  // namespace agspeed::runtime::tune
