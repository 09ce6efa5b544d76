// SPDX-License-Identifier: Apache-2.0
#include "comm/io/fd_limit.h"

#include <optional>

#include <gtest/gtest.h>

#include "tests/comm/io/limited_descriptors.h"

namespace agspeed::comm::io {
namespace {

TEST(FdReservation, IsEnoughForAllGroupsOfAProcess) {
  constexpr size_t kFew = 256, kNumPeers = 40;
  const LimitedDescriptors limited(kFew);
  std::optional<FdReservation> first(std::in_place, 1, kNumPeers);
  const rlim_t ofOne = descriptorLimit().rlim_cur;
  const FdReservation second(1, kNumPeers);
  EXPECT_EQ(descriptorLimit().rlim_cur, 2 * ofOne);
  first.reset();
  const FdReservation third(1, kNumPeers);
  EXPECT_EQ(descriptorLimit().rlim_cur, 2 * ofOne) << "the first's is free again";
}

TEST(FdReservation, NeverLowersTheLimit) {
  const rlim_t before = descriptorLimit().rlim_cur;
  const FdReservation few(1, 1);
  EXPECT_EQ(descriptorLimit().rlim_cur, before);
}

TEST(FdLimit, LeavesRoomForSoManyFlows) {
  EXPECT_EQ(flowsWithin(1024, 1, 1), 256);
  EXPECT_EQ(flowsWithin(1024, 2, 63), 2);
  EXPECT_EQ(flowsWithin(1024, 4, 255), 1) << "one at least";
  EXPECT_EQ(flowsWithin(1024, 1, 0), 256);
}

}  // namespace
}  // namespace agspeed::comm::io
