// SPDX-License-Identifier: Apache-2.0
// Behaviour that is the same for messages over the network and through shared memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "tests/comm/network/network_group.h"

namespace agspeed::comm::network {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

uint64_t freshSeed() { return std::random_device()(); }

/// The parameter is true if ranks share memory.
class EitherWay : public testing::TestWithParam<bool> {
 protected:
  static void choose(NetworkOptions& options) { options.sharesMemory = GetParam(); }
};

TEST_P(EitherWay, ARankThatEndsIsNamedAtOnce) {
  NetworkGroup group(3, 2, choose);
  ASSERT_EQ(group.exchange(20, 10000, freshSeed()), "");
  Parcel receive(2, {5, 5, 5}, 100000), send(2, {5, 5, 4}, 100000), other(1, {5, 5, 6}, 4);
  group[0].receive(receive);
  group[0].send(send);
  group[0].receive(other);
  group.drive([] { return false; }, milliseconds(20));
  group.destroy(2);
  ASSERT_TRUE(group.drive([&] { return receive.numFinished > 0 && send.numFinished > 0; }));
  EXPECT_EQ(receive.status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(receive.status.message(), testing::AllOf(HasSubstr("rank 2"), HasSubstr("has ended")));
  EXPECT_EQ(other.numFinished, 0);
  Parcel later(2, {5, 5, 7}, 4);
  group[0].send(later);
  EXPECT_EQ(later.status.code(), StatusCode::kUnavailable);
}

TEST_P(EitherWay, WhatWasSentArrivesThoughTheSenderEnds) {
  NetworkGroup group(2, 2, choose);
  ASSERT_EQ(group.exchange(10, 100, freshSeed()), "");
  Parcel send(1, {0, 0, 1}, 30000);
  send.storage[7] = std::byte{7};
  Parcel receive(0, {0, 0, 1}, 30000);
  group[0].send(send);
  ASSERT_EQ(send.numFinished, 1);
  group.destroy(0);
  group[1].receive(receive);
  ASSERT_TRUE(group.drive([&] { return receive.numFinished > 0; }));
  EXPECT_EQ(receive.storage, send.storage) << receive.status.toString();
}

TEST_P(EitherWay, ARankThatIsStartedLaterIsWaitedFor) {
  rendezvous::MemoryStore store;
  const auto start = [&](int rank) {
    NetworkOptions options = loopbackOptions(rank, 2, 1);
    choose(options);
    return NetworkMessenger::create(store, options).value();
  };
  const auto first = start(0);
  Parcel send(1, {0, 0, 0}, 1000);
  first->send(send);
  for (int i = 0; i < 3; ++i) first->progress(io::Clock::now() + milliseconds(5));
  const auto second = start(1);
  Parcel receive(0, {0, 0, 0}, 1000);
  second->receive(receive);
  const io::Clock::time_point limit = io::Clock::now() + std::chrono::seconds(20);
  while (receive.numFinished == 0 && io::Clock::now() < limit) {
    first->progress({});
    second->progress({});
  }
  EXPECT_TRUE(receive.numFinished > 0 && receive.status.isOk());
  EXPECT_EQ(GetParam(), first->sharedMemoryCounters() != nullptr && first->sharedMemoryCounters()->numFrames > 0);
}

TEST_P(EitherWay, ARankOfAnotherKeyIsRefusedWithItsReason) {
  NetworkGroup group(2, 1, [](NetworkOptions& options) {
    choose(options);
    options.key = security::JobKey(20, std::byte(options.rank));
  });
  Parcel receive(1, {0, 0, 0}, 4);
  group[0].receive(receive);
  ASSERT_TRUE(group.drive([&] { return receive.numFinished > 0; }));
  EXPECT_EQ(receive.status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(receive.status.message(), HasSubstr("another job key"));
}

INSTANTIATE_TEST_SUITE_P(Messages, EitherWay, testing::Bool(),
                         [](const auto& info) { return info.param ? "ThroughSharedMemory" : "OverTheNetwork"; });

}  // namespace
}  // namespace agspeed::comm::network
