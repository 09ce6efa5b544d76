// SPDX-License-Identifier: Apache-2.0
#include "comm/named/coordinator/batches.h"

#include <gtest/gtest.h>

#include <vector>

namespace agspeed::comm::coordinator {
namespace {

using Ids = std::vector<uint32_t>;

TEST(Batches, AListIsFoundByRanksThatHaveNotSentIt) {
  Batches batches(2);
  Batch* batch = batches.add({3, 1}, 32, {});
  ASSERT_NE(batch, nullptr);
  EXPECT_EQ(batches.find(Ids{3, 1}, 0), batch);
  EXPECT_EQ(batches.find(Ids{1, 3}, 0), nullptr);
  batch->hasSubmitted[0] = true;
  EXPECT_EQ(batches.find(Ids{3, 1}, 0), nullptr);
  EXPECT_EQ(batches.find(Ids{3, 1}, 1), batch);
}

TEST(Batches, AnIdIsInOneBatchOnly) {
  Batches batches(2);
  EXPECT_EQ(batches.add({2, 5, 2}, 0, {}), nullptr);
  for (const uint32_t id : {2u, 5u}) EXPECT_FALSE(batches.contains(id)) << "of a list that was refused: " << id;
  ASSERT_NE(batches.add({2, 5}, 0, {}), nullptr);
  EXPECT_EQ(batches.add({7, 5}, 0, {}), nullptr);
  EXPECT_FALSE(batches.contains(7));
  EXPECT_TRUE(batches.contains(5));
  EXPECT_EQ(batches.numWaitingIds(), 2u);
}

TEST(Batches, TheIdsOfATakenBatchStayInItUntilTheyAreReleased) {
  Batches batches(2);
  Batch* batch = batches.add({1, 2}, 0, {});
  EXPECT_EQ(batches.findWaiting(1), batch);
  batch->numSubmitted = 2;
  const BatchHandle taken = batches.take(*batch);
  EXPECT_EQ(batches.numWaitingIds(), 0u);
  EXPECT_EQ(batches.findWaiting(1), nullptr);
  EXPECT_TRUE(batches.contains(1));
  for (const uint32_t id : taken->ids) batches.release(id);
  EXPECT_FALSE(batches.contains(1));
  EXPECT_FALSE(batches.contains(100));
}

}  // namespace
}  // namespace agspeed::comm::coordinator
