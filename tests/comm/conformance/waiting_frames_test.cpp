// SPDX-License-Identifier: Apache-2.0
// Frames of a TCP rail that may wait for others, so that one system call sends several of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/transport/tcp/tcp_rail.h"
#include "tests/comm/conformance/rail_suite.h"

namespace agspeed::comm::conformance {
namespace {

using testing::ElementsAre;
using testing::ElementsAreArray;

class WaitingFrames : public testing::Test {
 protected:
  WaitingFrames() : group_(2, makeRail) {}
  void SetUp() override { ASSERT_TRUE(group_.connect(0, 1)); }

  static std::unique_ptr<transport::Rail> makeRail(io::Poller& poller, rendezvous::Directory& directory) {
    transport::RailOptions options;
    options.address = {*topology::parseIpAddress("127.0.0.1"), 8, 0};
    auto rail = tcp::TcpRail::create(options, poller, directory).value();
    EXPECT_TRUE(directory.publish({rail->info().address}).isOk());
    return rail;
  }
  /// Requires: the payload lives until it is acknowledged.
  void send(const std::vector<std::byte>& payload, uint64_t number, bool mayWait) {
    transport::OutgoingFrame frame = frameOf(payload, number);
    frame.mayWait = mayWait;
    group_[0].send(1, frame);
  }
  bool haveArrived(size_t count) {
    return group_.drive([&] { return group_.heard(1, 0).numbers.size() >= count; });
  }
  std::vector<std::byte> heard(uint64_t number) { return group_.heard(1, 0).frames[number]; }

  RailGroup group_;
};

TEST_F(WaitingFrames, LeaveInOrderWhenFlushed) {
  const std::vector<std::vector<std::byte>> payloads = {payloadOf(1, 100), payloadOf(2, 1), payloadOf(3, 900)};
  for (uint64_t number = 1; number <= 3; ++number) send(payloads[number - 1], number, true);
  EXPECT_TRUE(group_[0].canSend(1));
  EXPECT_FALSE(group_[0].isFlushed());
  EXPECT_TRUE(group_[0].isReading(1));
  group_[0].flush(1);
  EXPECT_FALSE(group_[0].isReading(1));
  ASSERT_TRUE(haveArrived(3));
  EXPECT_THAT(group_.heard(1, 0).numbers, ElementsAre(1, 2, 3));
  for (uint64_t number = 1; number <= 3; ++number) EXPECT_EQ(heard(number), payloads[number - 1]) << number;
}

TEST_F(WaitingFrames, LeaveWithOneThatMayNotWait) {
  const std::vector<std::byte> payload = payloadOf(1, 50);
  send(payload, 1, true);
  send(payload, 2, false);
  ASSERT_TRUE(haveArrived(2));
  EXPECT_THAT(group_.heard(1, 0).numbers, ElementsAre(1, 2));
}

TEST_F(WaitingFrames, AreNotReadAnyMoreWhenCancelled) {
  const std::vector<std::byte> expected = payloadOf(1, 700), other = payloadOf(2, 300);
  std::vector<std::byte> payload = expected;
  send(payload, 1, true);
  send(other, 2, true);
  group_[0].cancelSend(1, 1, payload);
  std::fill(payload.begin(), payload.end(), std::byte{0x5a});
  group_[0].flush(1);
  ASSERT_TRUE(haveArrived(2));
  EXPECT_EQ(heard(1), expected);
  EXPECT_EQ(heard(2), other);
}

TEST_F(WaitingFrames, WithoutAFlushStillLeaveWhenMuchWaits) {
  constexpr size_t kCount = 3000;
  const std::vector<std::byte> payload = payloadOf(1, 2000);
  for (uint64_t number = 1; number <= kCount; ++number) {
    ASSERT_TRUE(group_.drive([&] { return group_[0].canSend(1); }));
    send(payload, number, true);
  }
  group_[0].flush(1);
  ASSERT_TRUE(haveArrived(kCount));
  std::vector<uint64_t> inOrder;
  for (uint64_t number = 1; number <= kCount; ++number) inOrder.push_back(number);
  EXPECT_THAT(group_.heard(1, 0).numbers, ElementsAreArray(inOrder));
  EXPECT_TRUE(group_.drive([&] { return group_[0].isFlushed(); }));
}

TEST_F(WaitingFrames, AFlushWithoutAConnectionDoesNothing) {
  group_[0].flush(0);
  group_[1].flush(0);
  EXPECT_FALSE(group_[1].isReading(0));
}

}  // namespace
}  // namespace agspeed::comm::conformance
