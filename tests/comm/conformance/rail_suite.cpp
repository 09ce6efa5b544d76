// SPDX-License-Identifier: Apache-2.0
#include "tests/comm/conformance/rail_suite.h"

#include <gmock/gmock.h>

namespace agspeed::comm::conformance {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Not;

constexpr size_t kSizes[] = {1, 7, 4096, 100, 65537, 200'000, 3};

/// Sends frames of many sizes from rank 0 to 1 and drives until all have left. Then sends a last frame until it
/// arrives, which shows that the others have been read. Payloads must live as long as the group.
struct Exchange {
  explicit Exchange(RailGroup& group) : group(group) {}

  void run() {
    for (const size_t size : kSizes) {
      payloads.push_back(payloadOf(payloads.size(), size));
      ASSERT_TRUE(group.send(0, 1, frameOf(payloads.back(), payloads.size() - 1)));
    }
    finish();
  }
  void finish() {
    const std::vector<std::byte> last = payloadOf(kLast, 5);
    ASSERT_TRUE(group.drive([&] {
      if (group[0].canSend(1)) group[0].send(1, frameOf(last, kLast));
      return group.heard(1, 0).frames.contains(kLast);
    }));
    ASSERT_TRUE(group.drive([&] { return group[0].isFlushed(); }));
  }

  static constexpr uint64_t kLast = 1000;
  RailGroup& group;
  std::vector<std::vector<std::byte>> payloads;
};

TEST_P(RailConformance, SaysWhatItCanDoTheSameForAllPeers) {
  RailGroup group(2, GetParam().make);
  const transport::Transport::Capabilities& can = group[0].capabilities(1);
  EXPECT_GT(can.segmentBytes, 0u);
  EXPECT_LE(can.segmentBytes, can.maxPayloadBytes);
  EXPECT_LE(can.maxPayloadBytes, wire::kMaxPayloadBytes);
  EXPECT_FALSE(can.isAcknowledging) << "who counts frames acknowledges them";
  EXPECT_EQ(group[0].capabilities(0).maxPayloadBytes, can.maxPayloadBytes);
}

TEST_P(RailConformance, SaysWhereItListens) {
  RailGroup group(2, GetParam().make);
  EXPECT_NE(group[0].info().address, group[1].info().address);
  EXPECT_EQ(group[0].info().numRefused, 0u);
}

TEST_P(RailConformance, ConnectsWhenThatIsWanted) {
  RailGroup group(2, GetParam().make);
  for (int i = 0; i < 20; ++i) group.step();
  EXPECT_FALSE(group[0].canSend(1)) << "no connection was requested";
  EXPECT_EQ(group[0].describeRoute(1), "");
  EXPECT_FALSE(group[1].mayStillReceive(0));
  ASSERT_TRUE(group.connect(0, 1));
  EXPECT_GT(group.heard(0, 1).numWritable, 0);
  EXPECT_THAT(group[0].describeRoute(1), Not(IsEmpty()));
  EXPECT_FALSE(group[1].canSend(0)) << "each sender connects on its own";
  EXPECT_TRUE(group.drive([&] { return group[1].mayStillReceive(0); }));
}

TEST_P(RailConformance, FramesArriveUnchanged) {
  RailGroup group(2, GetParam().make);
  ASSERT_TRUE(group.connect(0, 1));
  Exchange exchange(group);
  exchange.run();
  const bool isReliable = group[0].capabilities(1).isReliable;
  for (const auto& [number, bytes] : group.heard(1, 0).frames) {
    if (number == Exchange::kLast) continue;
    EXPECT_TRUE(bytes == exchange.payloads[number]) << "frame " << number << " has other bytes";
  }
  if (!isReliable) return;
  std::vector<uint64_t> numbers = group.heard(1, 0).numbers;
  numbers.resize(std::size(kSizes));
  EXPECT_THAT(numbers, ElementsAre(0, 1, 2, 3, 4, 5, 6)) << "in order, once";
}

TEST_P(RailConformance, UnwantedFramesAreDiscardedAndTheRestStillCounts) {
  RailGroup group(2, GetParam().make);
  ASSERT_TRUE(group.connect(0, 1));
  group.end(1).isWanted = [](uint64_t number) { return number == Exchange::kLast; };
  Exchange exchange(group);
  exchange.run();
  EXPECT_EQ(group.heard(1, 0).frames[Exchange::kLast], payloadOf(Exchange::kLast, 5));
}

TEST_P(RailConformance, ACancelledSendIsNotReadAnyMore) {
  RailGroup group(2, GetParam().make);
  ASSERT_TRUE(group.connect(0, 1));
  const std::vector<std::byte> expected = payloadOf(1, wire::kMaxPayloadBytes);
  std::vector<std::byte> payload = expected;
  uint64_t number = 0;
  while (group[0].canSend(1) && number < 64) group[0].send(1, frameOf(payload, ++number));
  for (uint64_t token = 1; token <= number; ++token) group[0].cancelSend(1, token, payload);
  std::fill(payload.begin(), payload.end(), std::byte{0x5a});
  Exchange(group).finish();
  for (const auto& [each, bytes] : group.heard(1, 0).frames) {
    EXPECT_TRUE(each == Exchange::kLast || bytes == expected) << "frame " << each << " was read after its cancellation";
  }
}

TEST_P(RailConformance, ACancelledReceiveIsNotWrittenAnyMore) {
  RailGroup group(2, GetParam().make);
  ASSERT_TRUE(group.connect(0, 1));
  const std::vector<std::byte> payload = payloadOf(1, wire::kMaxPayloadBytes);
  std::vector<std::byte>& target = group.end(1).placed[{0, 1}];
  ASSERT_TRUE(group.drive([&] {
    if (target.empty() && group[0].canSend(1)) group[0].send(1, frameOf(payload, 1));
    return !target.empty();
  }));
  group[1].cancelReceive(0, target);
  group.end(1).isWanted = [](uint64_t number) { return number != 1; };
  const std::vector<std::byte> before = target;
  Exchange(group).finish();
  EXPECT_TRUE(target == before);
}

TEST_P(RailConformance, EstimatesGrowWithTheFrame) {
  RailGroup group(2, GetParam().make);
  ASSERT_TRUE(group.connect(0, 1));
  Exchange exchange(group);
  exchange.run();
  const double small = group[0].deliverySeconds(1, 1);
  EXPECT_GE(small, 0);
  EXPECT_GE(group[0].deliverySeconds(1, 1 << 20), small);
  EXPECT_GE(group[0].minRoundTripSeconds(1), 0);
  EXPECT_GE(group[0].coalesceSeconds(1), 0);
}

TEST_P(RailConformance, ADisconnectedPeerIsNotConnectedAgainAndStillHeard) {
  RailGroup group(2, GetParam().make);
  ASSERT_TRUE(group.connect(0, 1));
  ASSERT_TRUE(group.connect(1, 0));
  group[0].disconnect(1);
  for (int i = 0; i < 50; ++i) group.step();
  EXPECT_FALSE(group[0].canSend(1));
  EXPECT_EQ(group[0].describeRoute(1), "");
  const std::vector<std::byte> payload = payloadOf(1, 100);
  EXPECT_TRUE(group.drive([&] {
    if (group[1].canSend(0)) group[1].send(0, frameOf(payload, 1));
    return group.heard(0, 1).frames.contains(1);
  }));
}

TEST_P(RailConformance, ALostLinkEndsItsConnectionsUntilItIsBack) {
  RailGroup group(2, GetParam().make);
  ASSERT_TRUE(group.connect(0, 1));
  group[0].linkChanged(true);
  EXPECT_THAT(group.heard(0, 1).losses, IsEmpty()) << "it had one";
  group[0].linkChanged(false);
  EXPECT_THAT(group.heard(0, 1).losses, ElementsAre(transport::LossCause::kUnreachable));
  EXPECT_FALSE(group[0].canSend(1));
  group[0].linkChanged(true);
  EXPECT_TRUE(group.drive([&] { return group[0].canSend(1); }));
}

TEST_P(RailConformance, ALinkThatThePeerHasLostEndsTheConnectionsToIt) {
  RailGroup group(2, GetParam().make);
  ASSERT_TRUE(group.connect(0, 1));
  group[0].peerLinkChanged(1, 1, false);
  EXPECT_THAT(group.heard(0, 1).losses, IsEmpty()) << "another of its rails";
  group[0].peerLinkChanged(1, 0, false);
  EXPECT_THAT(group.heard(0, 1).losses, ElementsAre(transport::LossCause::kUnreachable));
  group[0].peerLinkChanged(1, 0, true);
  EXPECT_TRUE(group.drive([&] { return group[0].canSend(1); }));
}

TEST_P(RailConformance, APeerThatEndsIsLostAndRefusesConnections) {
  RailGroup group(2, GetParam().make);
  ASSERT_TRUE(group.connect(0, 1));
  ASSERT_TRUE(group.connect(1, 0));
  ASSERT_TRUE(group.drive([&] { return group[0].mayStillReceive(1); }));
  group.destroy(1);
  const std::vector<transport::LossCause>& losses = group.heard(0, 1).losses;
  EXPECT_TRUE(group.drive([&] { return !losses.empty() && losses.back() == transport::LossCause::kRefused; }));
  EXPECT_FALSE(group[0].canSend(1));
  EXPECT_TRUE(group.drive([&] { return !group[0].mayStillReceive(1); }));
}

}  // namespace
}  // namespace agspeed::comm::conformance
