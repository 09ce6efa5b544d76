// SPDX-License-Identifier: Apache-2.0
#include "tests/comm/conformance/transport_suite.h"

#include <gmock/gmock.h>

#include <numeric>
#include <random>

namespace agspeed::comm::conformance {
namespace {

using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;
using testing::UnorderedElementsAreArray;

/// Numbers 1 to n.
std::vector<uint64_t> upTo(uint64_t last) {
  std::vector<uint64_t> numbers(last);
  std::iota(numbers.begin(), numbers.end(), 1);
  return numbers;
}

/// Frames from one rank to another, numbered from 1.
struct Stream {
  Stream(TransportGroup& group, int rank, int peer) : group(group), rank(rank), peer(peer) {}

  /// Sends frames of random sizes. Returns true if there was room for all.
  bool send(int numFrames, uint64_t seed) {
    std::mt19937_64 random(seed);
    const uint32_t longest = group[rank].capabilities(peer).maxPayloadBytes;
    for (int i = 0; i < numFrames; ++i) {
      const size_t size = 1 + random() % (random() % 3 == 0 ? longest : 2000);
      payloads.push_back(payloadOf(payloads.size() + 1, size));
      if (!group.send(rank, peer, frameOf(payloads.back(), payloads.size()))) return false;
    }
    return true;
  }
  bool isAcknowledged() const { return group.heard(rank, peer).tokens.size() >= payloads.size(); }
  /// Returns what went wrong. Returns "" if all frames arrived unchanged and were acknowledged once.
  std::string check() const {
    std::string wrong;
    const PeerEvents& there = group.heard(peer, rank);
    for (uint64_t number = 1; number <= payloads.size(); ++number) {
      const std::string name = "frame " + std::to_string(number) + " of rank " + std::to_string(rank);
      const auto found = there.frames.find(number);
      if (found == there.frames.end()) {
        wrong += name + " is missing\n";
      } else if (found->second != payloads[number - 1]) {
        wrong += name + " has other bytes\n";
      }
    }
    if (there.numbers.size() != payloads.size()) wrong += std::to_string(there.numbers.size()) + " frames arrived\n";
    return wrong;
  }

  TransportGroup& group;
  const int rank, peer;
  std::vector<std::vector<std::byte>> payloads;
};

uint64_t freshSeed() { return std::random_device()(); }

TEST_P(TransportConformance, SaysWhatItCanDo) {
  TransportGroup group(2, GetParam().make);
  const transport::Transport::Capabilities& can = group[0].capabilities(1);
  EXPECT_TRUE(can.isAcknowledging);
  EXPECT_GT(can.segmentBytes, 0u);
  EXPECT_LE(can.segmentBytes, can.maxPayloadBytes);
  EXPECT_LE(can.maxPayloadBytes, wire::kMaxPayloadBytes);
}

TEST_P(TransportConformance, ConnectsWhenThatIsWanted) {
  TransportGroup group(2, GetParam().make);
  for (int i = 0; i < 20; ++i) group.step();
  EXPECT_FALSE(group[0].canSend(1)) << "no connection was requested";
  EXPECT_EQ(group[0].describeRoute(1), "");
  ASSERT_TRUE(group.connect(0, 1));
  EXPECT_GT(group.heard(0, 1).numWritable, 0);
  EXPECT_THAT(group[0].describeRoute(1), Not(IsEmpty()));
  EXPECT_GE(group[0].coalesceSeconds(1), 0);
}

TEST_P(TransportConformance, EveryFrameArrivesOnceAndIsAcknowledgedOnce) {
  const uint64_t seed = freshSeed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  TransportGroup group(2, GetParam().make);
  ASSERT_TRUE(group.connect(0, 1));
  Stream stream(group, 0, 1);
  ASSERT_TRUE(stream.send(300, seed));
  ASSERT_TRUE(group.drive([&] { return stream.isAcknowledged(); }));
  EXPECT_EQ(stream.check(), "");
  EXPECT_THAT(group.heard(0, 1).tokens, UnorderedElementsAreArray(upTo(300)));
  EXPECT_TRUE(group.drive([&] { return group[0].isFlushed(); }));
}

TEST_P(TransportConformance, RanksTalkToAllOthersAtOnce) {
  const uint64_t seed = freshSeed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  TransportGroup group(3, GetParam().make);
  std::vector<Stream> streams;
  for (int rank = 0; rank < 3; ++rank) {
    for (int step = 1; step < 3; ++step) streams.emplace_back(group, rank, (rank + step) % 3);
  }
  for (const Stream& stream : streams) ASSERT_TRUE(group.connect(stream.rank, stream.peer));
  for (uint64_t round = 0; round < 10; ++round) {
    for (Stream& stream : streams) ASSERT_TRUE(stream.send(10, seed + round));
  }
  for (const Stream& stream : streams) {
    ASSERT_TRUE(group.drive([&] { return stream.isAcknowledged(); }));
    EXPECT_EQ(stream.check(), "");
  }
}

TEST_P(TransportConformance, UnwantedFramesAreDiscardedAndAcknowledged) {
  TransportGroup group(2, GetParam().make);
  ASSERT_TRUE(group.connect(0, 1));
  group.end(1).isWanted = [](uint64_t number) { return number % 2 == 0; };
  Stream stream(group, 0, 1);
  ASSERT_TRUE(stream.send(40, 1));
  ASSERT_TRUE(group.drive([&] { return stream.isAcknowledged(); }));
  for (uint64_t number = 2; number <= 40; number += 2) {
    EXPECT_TRUE(group.heard(1, 0).frames.at(number) == stream.payloads[number - 1]) << "frame " << number;
  }
}

TEST_P(TransportConformance, AFullTransportReportsWhenThereIsRoomAgain) {
  TransportGroup group(2, GetParam().make);
  ASSERT_TRUE(group.connect(0, 1));
  const std::vector<std::byte> payload = payloadOf(1, group[0].capabilities(1).segmentBytes);
  uint64_t number = 0;
  while (group[0].canSend(1)) group[0].send(1, frameOf(payload, ++number));
  const int numBefore = group.heard(0, 1).numWritable;
  ASSERT_TRUE(group.drive([&] { return group[0].canSend(1); }));
  EXPECT_GT(group.heard(0, 1).numWritable, numBefore);
  ASSERT_TRUE(group.drive([&] { return group.heard(0, 1).tokens.size() == number; }));
}

TEST_P(TransportConformance, ACancelledSendIsNotReadAnyMoreAndStillEnds) {
  TransportGroup group(2, GetParam().make);
  ASSERT_TRUE(group.connect(0, 1));
  const std::vector<std::byte> expected = payloadOf(1, group[0].capabilities(1).maxPayloadBytes);
  const std::vector<std::byte> other = payloadOf(2, 1000);
  std::vector<std::byte> payload = expected;
  ASSERT_TRUE(group.send(0, 1, frameOf(payload, 1)));
  group[0].cancelSend(1, 1, payload);
  std::fill(payload.begin(), payload.end(), std::byte{0x5a});
  ASSERT_TRUE(group.send(0, 1, frameOf(other, 2)));
  ASSERT_TRUE(group.drive([&] { return group.heard(0, 1).tokens.size() == 2; }));
  EXPECT_TRUE(group.heard(1, 0).frames.at(2) == other);
  const auto found = group.heard(1, 0).frames.find(1);
  EXPECT_TRUE(found == group.heard(1, 0).frames.end() || found->second == expected);
}

TEST_P(TransportConformance, ACancelledReceiveIsNotWrittenAnyMoreAndItsFrameIsAcknowledged) {
  TransportGroup group(2, GetParam().make);
  ASSERT_TRUE(group.connect(0, 1));
  const std::vector<std::byte> payload = payloadOf(1, group[0].capabilities(1).maxPayloadBytes);
  std::vector<std::byte>& target = group.end(1).placed[{0, 1}];
  ASSERT_TRUE(group.send(0, 1, frameOf(payload, 1)));
  ASSERT_TRUE(group.drive([&] { return !target.empty(); }));
  group[1].cancelReceive(0, target);
  group.end(1).isWanted = [](uint64_t) { return false; };
  const std::vector<std::byte> before = target;
  ASSERT_TRUE(group.drive([&] { return group.heard(0, 1).tokens.size() == 1; }));
  EXPECT_TRUE(target == before);
}

TEST_P(TransportConformance, WhatAPeerSentBeforeItEndedArrivesAndThenItIsLostOnce) {
  TransportGroup group(2, GetParam().make);
  ASSERT_TRUE(group.connect(0, 1));
  ASSERT_TRUE(group.connect(1, 0));
  Stream stream(group, 1, 0);
  ASSERT_TRUE(stream.send(5, 1));
  ASSERT_TRUE(group.drive([&] { return group[1].isFlushed(); }));
  const bool isReliable = group[1].capabilities(0).isReliable;
  group.destroy(1);
  ASSERT_TRUE(group.drive([&] { return !group.heard(0, 1).losses.empty(); }));
  if (isReliable) {
    EXPECT_EQ(stream.check(), "");
  }
  for (int i = 0; i < 50; ++i) group.step();
  EXPECT_THAT(group.heard(0, 1).losses, SizeIs(1));
  EXPECT_FALSE(group[0].canSend(1));
  EXPECT_TRUE(group[0].isFlushed()) << "nothing waits for a peer that is lost";
  EXPECT_EQ(group[0].describeRoute(1), "");
}

}  // namespace
}  // namespace agspeed::comm::conformance
