// SPDX-License-Identifier: Apache-2.0
// Ranks agree on an epoch, although their store keeps the keys of earlier attempts of the job.
#include "comm/world/agreement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <thread>
#include <vector>

namespace agspeed::comm::world {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;
using testing::AllOf;
using testing::Each;
using testing::HasSubstr;

constexpr int kSize = 3;
constexpr seconds kLong{60};

/// Returns the results of agreeOnEpoch() of the ranks, each in a thread of its own.
std::vector<StatusOr<uint32_t>> agree(rendezvous::Store& store, const std::vector<int>& ranks,
                                      milliseconds timeout = kLong, int size = kSize) {
  std::vector<StatusOr<uint32_t>> agreed(ranks.size(), 0u);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < ranks.size(); ++i) {
    threads.emplace_back([&, i] { agreed[i] = agreeOnEpoch(store, ranks[i], size, steady_clock::now() + timeout); });
  }
  for (auto& thread : threads) thread.join();
  return agreed;
}

/// Returns the epoch on which all ranks agree.
uint32_t epochOfAll(rendezvous::Store& store, int size = kSize) {
  std::vector<int> ranks;
  for (int rank = 0; rank < size; ++rank) ranks.push_back(rank);
  std::set<uint32_t> epochs;
  for (const StatusOr<uint32_t>& each : agree(store, ranks, kLong, size)) {
    EXPECT_TRUE(each.hasValue()) << each.status().toString();
    if (each.hasValue()) epochs.insert(*each);
  }
  EXPECT_EQ(epochs.size(), 1u);
  return epochs.empty() ? 0 : *epochs.begin();
}

TEST(AgreeOnEpoch, FollowsOnEachOther) {
  rendezvous::MemoryStore store;
  EXPECT_EQ(epochOfAll(store), 1u);
  EXPECT_EQ(epochOfAll(store), 2u);
  EXPECT_EQ(epochOfAll(store, 1), 1u) << "each size counts for itself";
  EXPECT_EQ(epochOfAll(store), 3u);
}

/// Earlier attempts that only some ranks had joined when all of them ended.
class AgreeAfterAnAttemptOf : public testing::TestWithParam<std::vector<int>> {};

TEST_P(AgreeAfterAnAttemptOf, SomeRanks) {
  rendezvous::MemoryStore store;
  for (int attempt = 0; attempt < 2; ++attempt) {
    for (const StatusOr<uint32_t>& each : agree(store, GetParam(), milliseconds(20))) {
      EXPECT_EQ(each.status().code(), StatusCode::kResourceExhausted);
    }
  }
  const uint32_t first = epochOfAll(store);
  EXPECT_EQ(epochOfAll(store), first + 1);
}

INSTANTIATE_TEST_SUITE_P(AgreeOnEpoch, AgreeAfterAnAttemptOf,
                         testing::Values(std::vector{0}, std::vector{1}, std::vector{0, 1}, std::vector{1, 2},
                                         std::vector{0, 2}));

TEST(AgreeOnEpoch, ARankWithoutTheAnswerMeetsTheOthersAgain) {
  rendezvous::MemoryStore store;
  // Rank 0 declares an epoch complete. Another rank ends before it has read this declaration.
  std::thread leader([&] { EXPECT_TRUE(agreeOnEpoch(store, 0, 2, steady_clock::now() + kLong).hasValue()); });
  ASSERT_TRUE(store.set("agspeed/2/1/joined/1", "yes").isOk());
  leader.join();
  EXPECT_EQ(epochOfAll(store, 2), 2u);
}

TEST(AgreeOnEpoch, NamesTheRankThatIsMissing) {
  rendezvous::MemoryStore store;
  const auto agreed = agree(store, {0, 1}, milliseconds(200));
  EXPECT_THAT(agreed[0].status().message(), AllOf(HasSubstr("timed out"), HasSubstr("rank 2 has not joined")));
  EXPECT_THAT(agreed[1].status().message(), AllOf(HasSubstr("timed out"), HasSubstr("another rank has not joined")));
  rendezvous::MemoryStore empty;
  EXPECT_THAT(agree(empty, {1}, milliseconds(10))[0].status().message(), HasSubstr("rank 0 has not joined"));
}

TEST(AgreeOnEpoch, RefusesAnOfferThatIsNoNumber) {
  rendezvous::MemoryStore store;
  ASSERT_TRUE(store.set("agspeed/3/offer", "1/../2").isOk());
  const auto agreed = agree(store, {1});
  EXPECT_EQ(agreed[0].status().code(), StatusCode::kDataLoss);
  EXPECT_THAT(agreed[0].status().message(), HasSubstr("'1/../2'"));
}

}  // namespace
}  // namespace agspeed::comm::world
