// SPDX-License-Identifier: Apache-2.0
#include "comm/plan/shares.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

namespace agspeed::comm::plan {
namespace {

/// The seconds of a direct all-reduce of one byte with these chunks.
double secondsWith(const std::vector<double>& rates, const std::vector<uint32_t>& shares) {
  const double whole = std::accumulate(shares.begin(), shares.end(), 0.0);
  const double others = static_cast<double>(rates.size()) - 2;
  double seconds = 0;
  for (size_t i = 0; i < rates.size(); ++i) seconds = std::max(seconds, (1 + others * shares[i] / whole) / rates[i]);
  return seconds;
}

TEST(Shares, AHostAtHalfBandwidthCostsWhatItMust) {
  // Equal hosts take 2 (p - 1) / p. A host at half the rate makes this p / (p - 1) times longer, so the result is 2 for
  // any p.
  for (const int numRanks : {4, 8, 16}) {
    std::vector<double> rates(static_cast<size_t>(numRanks), 25e6);
    rates[1] = 12.5e6;
    const std::vector<uint32_t> shares = sharesFor(rates);
    ASSERT_EQ(shares.size(), rates.size());
    EXPECT_NEAR(secondsWith(rates, shares) * 25e6, 2, 0.01) << numRanks << " ranks";
  }
}

TEST(Shares, NoSharesAreBetterOnRandomHosts) {
  for (unsigned seed = 1; seed <= 200; ++seed) {
    std::mt19937 random(seed);
    std::vector<double> rates(3 + random() % 6, 100);
    rates[random() % rates.size()] = 10 + random() % 65;
    const std::vector<uint32_t> shares = sharesFor(rates);
    ASSERT_EQ(shares.size(), rates.size()) << "seed " << seed;
    const double best = secondsWith(rates, shares);
    for (int i = 0; i < 200; ++i) {
      std::vector<uint32_t> other;
      for (size_t rank = 0; rank < rates.size(); ++rank) other.push_back(random() % 1000);
      EXPECT_LE(best, secondsWith(rates, other) * 1.06) << "seed " << seed;
    }
  }
}

TEST(Shares, EqualAndUnknownHostsGetEqualChunks) {
  EXPECT_TRUE(sharesFor(std::vector<double>{25, 24, 21, 23}).empty()) << "measurements scatter";
  EXPECT_TRUE(sharesFor(std::vector<double>{25, 0, 25, 25}).empty());
  EXPECT_TRUE(sharesFor(std::vector<double>{25, 12}).empty()) << "two ranks exchange everything in any case";
  EXPECT_TRUE(sharesFor({}).empty());
}

TEST(Shares, SegmentsAreShorterButOnLongPaths) {
  constexpr size_t kUsual = 128 * 1024;
  NetworkMeasurement near;
  near.bytesPerSecond = 60e6;
  near.latencySeconds = 200e-6;
  EXPECT_EQ(segmentForShares(kUsual, 8, 4, near), 64u * 1024);
  EXPECT_EQ(segmentForShares(kUsual, 8, 3, near) % 256, 0u);
  EXPECT_EQ(segmentForShares(kUsual, 8, 64, near), 32u * 1024);
  EXPECT_EQ(segmentForShares(16 * 1024, 8, 4, near), 16u * 1024) << "never longer than asked for";
  NetworkMeasurement far = near;
  far.latencySeconds = 25e-3;
  EXPECT_EQ(segmentForShares(kUsual, 8, 4, far), kUsual);
}

TEST(Shares, SlowerHostsNeverGetMore) {
  const std::vector<uint32_t> shares = sharesFor(std::vector<double>{100, 68, 50, 72, 99});
  EXPECT_EQ(shares[0], shares[4]);
  EXPECT_GT(shares[0], shares[3]);
  EXPECT_GE(shares[3], shares[1]);
  EXPECT_GE(shares[1], shares[2]);
}

}  // namespace
}  // namespace agspeed::comm::plan
