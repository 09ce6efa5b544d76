// SPDX-License-Identifier: Apache-2.0
#include "comm/rendezvous/rank_names.h"

#include <gtest/gtest.h>

namespace agspeed::comm::rendezvous {
namespace {

TEST(RankNames, ARankHasItsNumberUnlessANameIsSet) {
  RankNames names;
  names.set(1, "process 42 on node1");
  EXPECT_EQ(names.of(0), "rank 0");
  EXPECT_EQ(names.of(1), "process 42 on node1");
  names.set(1, "process 43 on node1");
  EXPECT_EQ(names.of(1), "process 43 on node1");
}

TEST(RankNames, TheLogNamesThemUnlessThatIsSwitchedOff) {
  RankNames names;
  EXPECT_TRUE(names.areLogged());
  names.setLogged(false);
  EXPECT_FALSE(names.areLogged());
}

}  // namespace
}  // namespace agspeed::comm::rendezvous
