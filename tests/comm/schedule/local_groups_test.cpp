// SPDX-License-Identifier: Apache-2.0
#include "comm/schedule/local_groups.h"

#include <gtest/gtest.h>

#include <vector>

namespace agspeed::comm::schedule {
namespace {

std::vector<RankRange> subtrees(int numRanks, const std::vector<int>& firstRanks, int group) {
  const LocalGroups groups(numRanks, firstRanks);
  const auto found = groups.subtrees(group);
  return {found.begin(), found.end()};
}

TEST(LocalGroups, HaveTheLargestSubtreesOfTheirRanks) {
  using Ranks = std::vector<RankRange>;
  EXPECT_EQ(subtrees(15, {0, 8}, 0), (Ranks{{0, 8}}));
  EXPECT_EQ(subtrees(15, {0, 8}, 1), (Ranks{{8, 7}}));
  EXPECT_EQ(subtrees(12, {0, 6}, 0), (Ranks{{0, 4}, {4, 2}}));
  EXPECT_EQ(subtrees(12, {0, 6}, 1), (Ranks{{6, 2}, {8, 4}}));
  EXPECT_EQ(subtrees(7, {0, 4}, 1), (Ranks{{4, 3}}));
  EXPECT_EQ(subtrees(4, {0, 1}, 1), (Ranks{{1, 1}, {2, 2}})) << "the pair 0 and 1 is on two hosts";
  EXPECT_EQ(subtrees(4, {}, 3), (Ranks{{3, 1}}));
}

TEST(LocalGroups, EachChunkHasOneWorkerPerGroupAndWorkersShareTheWork) {
  for (const std::vector<int>& firstRanks : {std::vector<int>{0, 8}, {0, 1, 3}, {0, 4, 9, 10}, {0, 14}, {}}) {
    const LocalGroups groups(15, firstRanks);
    for (int owner = 0; owner < 15; ++owner) {
      for (int group = 0; group < groups.numGroups(); ++group) {
        const int worker = groups.workerOf(owner, group);
        EXPECT_EQ(groups.groupOf(worker), group);
        const RankRange owners = groups.ownersOf(worker, groups.groupOf(owner));
        EXPECT_TRUE(owners.first <= owner && owner < owners.first + owners.count) << worker << " for " << owner;
      }
      EXPECT_EQ(groups.workerOf(owner, groups.groupOf(owner)), owner);
    }
  }
}

TEST(LocalGroups, TheChunksOfAWorkerFollowEachOther) {
  const LocalGroups groups(15, std::vector<int>{0, 4, 9});
  std::vector<bool> isUsed(15, false);
  for (int owner = 0; owner < 15; ++owner) {
    const uint32_t chunk = groups.chunkOf(owner);
    ASSERT_LT(chunk, 15u);
    EXPECT_FALSE(isUsed[chunk]) << chunk;
    isUsed[chunk] = true;
    for (int group = 0; group < groups.numGroups(); ++group) {
      const int worker = groups.workerOf(owner, group);
      EXPECT_GE(chunk, groups.firstChunkOf(worker));
      EXPECT_LT(chunk, groups.firstChunkOf(worker) + groups.numChunksOf(worker));
    }
  }
}

}  // namespace
}  // namespace agspeed::comm::schedule
