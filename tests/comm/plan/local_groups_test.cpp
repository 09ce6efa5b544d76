// SPDX-License-Identifier: Apache-2.0
#include "comm/plan/local_groups.h"

#include <gtest/gtest.h>

#include <vector>

namespace agspeed::comm::plan {
namespace {

using schedule::Collective;

std::vector<int> groupsOf(const std::vector<uint32_t>& hosts) { return localGroupsOf(hosts); }

bool gains(Collective collective, bool isWidened, const std::vector<int>& firstRanks, int numRanks) {
  return gainsFromLocalGroups(collective, isWidened, schedule::LocalGroups(numRanks, firstRanks));
}

TEST(LocalGroupsOf, BeginWhereTheHostChanges) {
  EXPECT_EQ(groupsOf({1, 1, 2, 2}), (std::vector<int>{0, 2}));
  EXPECT_EQ(groupsOf({1, 1, 1, 2, 2, 2}), (std::vector<int>{0, 3}));
  EXPECT_EQ(groupsOf({1, 1, 1, 1, 2}), (std::vector<int>{0, 4}));
  EXPECT_EQ(groupsOf({1, 1, 2, 2, 1, 1}), (std::vector<int>{0, 2, 4})) << "the first host's ranks in two places";
}

TEST(LocalGroupsOf, AreMissingIfNeighboursShareNoHostOrAllShareOneOrOneIsUnknown) {
  EXPECT_TRUE(groupsOf({1, 2, 1, 2}).empty());
  EXPECT_TRUE(groupsOf({1, 1, 1, 1}).empty());
  EXPECT_TRUE(groupsOf({1, 1, 0, 0}).empty());
  EXPECT_TRUE(groupsOf({}).empty());
}

TEST(LocalGroupsOf, GainIfFewerBytesLeaveTheBusiestHost) {
  EXPECT_TRUE(gains(Collective::kReduceScatter, false, {0, 2}, 4));
  EXPECT_TRUE(gains(Collective::kReduceScatter, true, {0, 4}, 8));
  EXPECT_TRUE(gains(Collective::kAllReduce, true, {0, 2}, 4));
  EXPECT_TRUE(gains(Collective::kAllReduce, false, {0, 8}, 15));
  EXPECT_TRUE(gains(Collective::kAllGather, false, {0, 2}, 4));
}

TEST(LocalGroupsOf, OfTwoDoNotGainIfTheirSumsAreTwiceAsLong) {
  EXPECT_FALSE(gains(Collective::kReduceScatter, true, {0, 2}, 4));
}

}  // namespace
}  // namespace agspeed::comm::plan
