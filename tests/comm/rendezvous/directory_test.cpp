// SPDX-License-Identifier: Apache-2.0
#include "comm/rendezvous/directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace agspeed::comm {
namespace {

using testing::HasSubstr;

DirectoryOptions optionsOf(int rank) {
  DirectoryOptions options;
  options.rank = rank;
  options.size = 3;
  options.key = JobKey(20, std::byte{7});
  return options;
}

/// Why rank 0 cannot use a rank 1 with these options.
std::string refusal(const DirectoryOptions& options) {
  MemoryStore store;
  Directory self(store, optionsOf(0));
  Directory other(store, options);
  EXPECT_TRUE(other.publish({}).isOk());
  return self.find(1, {}).status().message();
}

TEST(Directory, PairsShareASecretThatOthersDoNot) {
  MemoryStore store;
  Directory first(store, optionsOf(0));
  Directory second(store, optionsOf(1));
  Directory third(store, optionsOf(2));
  for (Directory* directory : {&first, &second, &third}) ASSERT_TRUE(directory->publish({}).isOk());
  const Digest secret = (*first.find(1, {}))->secret;
  EXPECT_EQ((*second.find(0, {}))->secret, secret);
  EXPECT_NE((*third.find(0, {}))->secret, secret);
}

TEST(Directory, AnAbsentPeerIsLookedForAgainAfterAWhile) {
  MemoryStore store;
  Directory first(store, optionsOf(0));
  Directory second(store, optionsOf(1));
  const Directory::TimePoint start{};
  EXPECT_EQ(*first.find(1, start), nullptr);
  ASSERT_TRUE(second.publish({{*parseIpAddress("10.0.0.1"), 24, 4711}}).isOk());
  EXPECT_EQ(*first.find(1, start + std::chrono::milliseconds(1)), nullptr);
  const StatusOr<const Peer*> peer = first.find(1, start + std::chrono::milliseconds(10));
  ASSERT_TRUE(peer.isOk() && *peer != nullptr);
  EXPECT_EQ((*peer)->record.rails.front().port, 4711);
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
  other.protection = Protection::kIntegrity;
  EXPECT_THAT(refusal(other), HasSubstr("by integrity"));
  other = optionsOf(1);
  other.key = JobKey(20, std::byte{8});
  EXPECT_THAT(refusal(other), HasSubstr("another job key"));
}

}  // namespace
}  // namespace agspeed::comm
