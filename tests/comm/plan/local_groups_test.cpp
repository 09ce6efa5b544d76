// SPDX-License-Identifier: Apache-2.0
#include "comm/plan/local_groups.h"

#include <gtest/gtest.h>

#include <vector>

namespace agspeed::comm::plan {
namespace {

int localGroupSize(const std::vector<uint32_t>& hosts) { return localGroupSizeOf(hosts); }

TEST(LocalGroups, AreTheLargestPowerOfTwoThatFitsAllHosts) {
  EXPECT_EQ(localGroupSize({1, 1, 2, 2}), 2);
  EXPECT_EQ(localGroupSize({1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3}), 4);
  EXPECT_EQ(localGroupSize({1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2}), 2) << "six on each";
  EXPECT_EQ(localGroupSize({1, 1, 1, 1, 2, 2}), 2) << "four and two";
  EXPECT_EQ(localGroupSize({1, 1, 1, 2, 2, 2}), 1) << "three on each";
  EXPECT_EQ(localGroupSize({1, 1, 2, 2, 1, 1}), 2) << "the first host's ranks in two places";
}

TEST(LocalGroups, AreMissingWhereRanksAreNumberedAcrossHostsOrAllOnOneOrUnknown) {
  EXPECT_EQ(localGroupSize({1, 2, 1, 2}), 1);
  EXPECT_EQ(localGroupSize({1, 1, 1, 1}), 1);
  EXPECT_EQ(localGroupSize({1, 1, 0, 0}), 1);
  EXPECT_EQ(localGroupSize({}), 1);
}

TEST(LocalGroups, OfTwoDoNotPayWhereTheirSumsAreTwiceAsLong) {
  EXPECT_FALSE(gainsFromLocalGroups(schedule::Collective::kAllReduce, false, 1));
  EXPECT_TRUE(gainsFromLocalGroups(schedule::Collective::kReduceScatter, false, 2));
  EXPECT_FALSE(gainsFromLocalGroups(schedule::Collective::kReduceScatter, true, 2));
  EXPECT_TRUE(gainsFromLocalGroups(schedule::Collective::kReduceScatter, true, 4));
  EXPECT_TRUE(gainsFromLocalGroups(schedule::Collective::kAllReduce, true, 2));
}

}  // namespace
}  // namespace agspeed::comm::plan
