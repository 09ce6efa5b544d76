// SPDX-License-Identifier: Apache-2.0
#include "comm/rendezvous/directory.h"

#include <atomic>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace agspeed::comm::rendezvous {
namespace {

using testing::HasSubstr;

DirectoryOptions optionsOf(int rank) {
  DirectoryOptions options;
  options.rank = rank;
  options.size = 3;
  options.key = security::JobKey(20, std::byte{7});
  return options;
}

/// Returns the directory's record of rank 1 once the store has answered, which may take a moment.
StatusOr<const Peer*> findSoon(Directory& directory, int rank, Directory::TimePoint now = {}) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  StatusOr<const Peer*> found = directory.find(rank, now);
  while (found.hasValue() && *found == nullptr && std::chrono::steady_clock::now() < limit) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    found = directory.find(rank, now);
  }
  return found;
}

/// Returns why rank 0 cannot use a rank 1 with these options.
std::string refusal(const DirectoryOptions& options) {
  MemoryStore store;
  Directory self(store, optionsOf(0));
  Directory other(store, options);
  EXPECT_TRUE(other.publish({}).isOk());
  return findSoon(self, 1).status().message();
}

TEST(Directory, PairsShareASecretThatOthersDoNot) {
  MemoryStore store;
  Directory first(store, optionsOf(0));
  Directory second(store, optionsOf(1));
  Directory third(store, optionsOf(2));
  for (Directory* directory : {&first, &second, &third}) ASSERT_TRUE(directory->publish({}).isOk());
  const security::Digest secret = (*findSoon(first, 1))->secret;
  EXPECT_EQ((*findSoon(second, 0))->secret, secret);
  EXPECT_NE((*findSoon(third, 0))->secret, secret);
}

/// Counts reads of the store.
class CountingStore final : public Store {
 public:
  Status set(const std::string& key, const std::string& value) override { return values_.set(key, value); }
  StatusOr<std::optional<std::string>> tryGet(const std::string& key) override {
    ++numReads;
    return values_.tryGet(key);
  }
  StatusOr<int64_t> add(const std::string& key, int64_t amount) override { return values_.add(key, amount); }
  StatusOr<std::string> setOnce(const std::string& key, const std::string& value) override {
    return values_.setOnce(key, value);
  }

  std::atomic<int> numReads = 0;

 private:
  MemoryStore values_;
};

TEST(Directory, AnAbsentPeerIsLookedForAgainAfterAWhile) {
  CountingStore store;
  Directory first(store, optionsOf(0));
  Directory second(store, optionsOf(1));
  const Directory::TimePoint start{};
  for (int i = 0; i < 100; ++i) EXPECT_EQ(*first.find(1, start), nullptr);
  EXPECT_LE(store.numReads, 1);
  ASSERT_TRUE(second.publish({{*topology::parseIpAddress("10.0.0.1"), 24, 4711}}).isOk());
  const StatusOr<const Peer*> peer = findSoon(first, 1, start + std::chrono::milliseconds(10));
  ASSERT_TRUE(peer.hasValue() && *peer != nullptr);
  EXPECT_EQ((*peer)->record.rails.front().port, 4711);
}

TEST(Directory, APeerThatIsLongAbsentIsLookedForSeldom) {
  CountingStore store;
  DirectoryOptions options = optionsOf(0);
  options.storeTimeout = std::chrono::hours(1);
  Directory directory(store, options);
  for (int i = 0; i < 20'000; ++i) {
    ASSERT_EQ(*directory.find(1, Directory::TimePoint(std::chrono::milliseconds(i))), nullptr);
    if (i % 5 == 0) std::this_thread::sleep_for(std::chrono::microseconds(20));  // the store answers meanwhile
  }
  EXPECT_GT(directory.askAgainAt(1), Directory::TimePoint(std::chrono::milliseconds(19'900)));
  EXPECT_GT(store.numReads, 20);
  EXPECT_LT(store.numReads, 200);  // a read every 5 ms would be 4000
}

TEST(Directory, APeerThatHasNotJoinedIsMissedOnce) {
  CountingStore store;
  DirectoryOptions options = optionsOf(0);
  options.storeTimeout = std::chrono::hours(1);
  Directory directory(store, options);
  auto logUntil = [&, now = 0](int end) mutable {
    testing::internal::CaptureStderr();
    for (; now < end; now += 5) {
      for (const int rank : {1, 2}) (void)directory.find(rank, Directory::TimePoint(std::chrono::milliseconds(now)));
      std::this_thread::sleep_for(std::chrono::microseconds(50));  // the store answers meanwhile
    }
    return testing::internal::GetCapturedStderr();
  };
  EXPECT_THAT(logUntil(4'000), testing::Not(testing::HasSubstr("has not joined"))) << "it may be late";
  EXPECT_THAT(logUntil(10'000),
              testing::ContainsRegex("rank 0 has waited for rank [12] for [5-9] s: that rank has not"));
  EXPECT_THAT(logUntil(20'000), testing::Not(testing::HasSubstr("has not joined")));
}

TEST(Directory, PeersThatAreIntroducedNeedNoStore) {
  Directory first(optionsOf(0)), second(optionsOf(1));
  ASSERT_TRUE(first.publish({}).isOk());
  ASSERT_TRUE(second.publish({{*topology::parseIpAddress("10.0.0.1"), 24, 4711}}).isOk());
  EXPECT_EQ(*first.find(1, {}), nullptr);
  EXPECT_GT(first.askAgainAt(1), Directory::TimePoint());
  first.introduce(1, "process 42 on node1", second.record());
  second.introduce(0, "process 41 on node0", first.record());
  const Peer* peer = *first.find(1, {});
  ASSERT_NE(peer, nullptr);
  EXPECT_EQ(peer->record.rails.front().port, 4711);
  EXPECT_EQ(peer->secret, (*second.find(0, {}))->secret);
  first.introduce(1, "process 43 on node1", "not a record");
  EXPECT_EQ(*first.find(1, {}), peer) << "a peer does not change";
}

TEST(Directory, AnIntroducedPeerIsNamedInErrors) {
  DirectoryOptions options = optionsOf(0);
  options.names.set(0, "this process");
  Directory self(options);
  self.introduce(1, "process 42 on node1", "not a record");
  EXPECT_THAT(self.find(1, {}).status().message(), HasSubstr("this process cannot use process 42 on node1: "));
}

TEST(Directory, ARankStartedTwiceIsRefused) {
  MemoryStore store;
  Directory first(store, optionsOf(1));
  Directory again(store, optionsOf(1));
  ASSERT_TRUE(first.publish({}).isOk());
  EXPECT_THAT(again.publish({}).message(), HasSubstr("rank 1 was started twice"));
}

TEST(Directory, EpochsHaveTheirOwnRecords) {
  MemoryStore store;
  Directory first(store, optionsOf(1));
  DirectoryOptions later = optionsOf(1);
  later.epoch = 1;
  Directory again(store, later);
  ASSERT_TRUE(first.publish({}).isOk());
  EXPECT_TRUE(again.publish({}).isOk());
}

TEST(Directory, WhatDoesNotFitIsNamed) {
  DirectoryOptions other = optionsOf(1);
  other.size = 4;
  EXPECT_THAT(refusal(other), HasSubstr("a world of 4 ranks"));
  other = optionsOf(1);
  other.protection = security::Protection::kIntegrity;
  EXPECT_THAT(refusal(other), HasSubstr("by integrity"));
  other = optionsOf(1);
  other.key = security::JobKey(20, std::byte{8});
  EXPECT_THAT(refusal(other), HasSubstr("another job key"));
}

}  // namespace
}  // namespace agspeed::comm::rendezvous
