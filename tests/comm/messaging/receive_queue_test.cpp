// SPDX-License-Identifier: Apache-2.0
// The messages of one peer and their receives: each order of receive, RTS and frames, and messages that no receive
// takes.
#include "comm/messaging/receive_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/comm/network/network_group.h"
#include "tests/comm/transport/fake_rail.h"

namespace agspeed::comm::messaging {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

constexpr size_t kShort = 100, kLong = 300000;

class ReceiveQueueTest : public testing::Test {
 protected:
  static wire::MessageId nameOf(uint64_t sequence) { return {5, 6, sequence}; }
  static network::Parcel parcel(uint64_t sequence, size_t size) { return {1, nameOf(sequence), size}; }
  static wire::FrameHeader headerOf(wire::FrameKind kind, uint64_t sequence, uint64_t total) {
    wire::FrameHeader header;
    header.kind = kind;
    header.id = nameOf(sequence);
    header.total = total;
    return header;
  }

  /// Bytes [begin, begin + length) of a message of `total` bytes arrive. The byte at position i has the value i.
  /// Returns whether the queue accepted the bytes.
  bool arrive(wire::FrameKind kind, uint64_t sequence, uint64_t total, uint64_t begin, uint32_t length) {
    wire::FrameHeader header = headerOf(kind, sequence, total);
    header.offset = begin;
    header.length = length;
    const std::span<std::byte> target = queue_.place(header);
    for (size_t i = 0; i < target.size(); ++i) target[i] = static_cast<std::byte>(begin + i);
    queue_.arrived(header);
    completions_.notifyAll();
    return !target.empty();
  }
  bool arriveWhole(wire::FrameKind kind, uint64_t sequence, size_t total) {
    return arrive(kind, sequence, total, 0, static_cast<uint32_t>(total));
  }
  void start(network::Parcel& parcel) {
    queue_.start(parcel);
    completions_.notifyAll();
  }
  void receiveRts(uint64_t sequence, uint64_t total) {
    queue_.receivedRts(headerOf(wire::FrameKind::kRts, sequence, total));
    completions_.notifyAll();
  }
  /// Returns the control frames that the queue has made since the last call.
  std::vector<wire::FrameHeader> answers() {
    sends_.pump();
    std::vector<wire::FrameHeader> headers;
    for (const transport::OutgoingFrame& frame : transport_.sent) headers.push_back(frame.header);
    transport_.sent.clear();
    return headers;
  }
  static void expectWhole(const network::Parcel& parcel) {
    EXPECT_EQ(parcel.numFinished, 1);
    EXPECT_TRUE(parcel.status.isOk()) << parcel.status.toString();
    for (size_t i = 0; i < parcel.numReceived; ++i) ASSERT_EQ(parcel.storage[i], static_cast<std::byte>(i)) << i;
  }

  rendezvous::RankNames names_;
  transport::FakeTransport transport_;
  CompletionQueue completions_;
  Communicators dropped_;
  EndpointContext context_{0, 1, names_, transport_, completions_, dropped_};
  Credits credits_;
  SendQueue sends_{context_, credits_};
  ReceiveQueue queue_{context_, sends_, credits_};
};

TEST_F(ReceiveQueueTest, FramesOfAnyOrderGoIntoTheMemoryOfTheReceive) {
  network::Parcel receive = parcel(0, kShort);
  start(receive);
  EXPECT_TRUE(arrive(wire::FrameKind::kEager, 0, kShort, 60, 40));
  EXPECT_EQ(receive.numFinished, 0);
  EXPECT_TRUE(arrive(wire::FrameKind::kEager, 0, kShort, 0, 60));
  expectWhole(receive);
  EXPECT_EQ(receive.numReceived, kShort);
  EXPECT_FALSE(queue_.isKnown(nameOf(0)));
}

TEST_F(ReceiveQueueTest, AnEmptyMessageArrivesToo) {
  network::Parcel receive = parcel(0, 0);
  start(receive);
  arrive(wire::FrameKind::kEager, 0, 0, 0, 0);
  expectWhole(receive);
}

TEST_F(ReceiveQueueTest, AnUnexpectedMessageIsHeldForItsReceive) {
  EXPECT_TRUE(arriveWhole(wire::FrameKind::kEager, 0, kShort));
  EXPECT_TRUE(queue_.probe(nameOf(0)));
  network::Parcel receive = parcel(0, kShort);
  start(receive);
  expectWhole(receive);
  EXPECT_FALSE(queue_.probe(nameOf(0)));
}

TEST_F(ReceiveQueueTest, AReceiveMayStartInTheMiddleOfItsMessage) {
  EXPECT_TRUE(arrive(wire::FrameKind::kEager, 0, kShort, 0, 60));
  network::Parcel receive = parcel(0, kShort);
  start(receive);
  EXPECT_EQ(receive.numFinished, 0);
  EXPECT_TRUE(arrive(wire::FrameKind::kEager, 0, kShort, 60, 40));
  expectWhole(receive);
}

TEST_F(ReceiveQueueTest, AMessageOfAnotherLengthFailsItsReceiveWithBothLengths) {
  network::Parcel early = parcel(0, kShort), late = parcel(1, kShort);
  start(early);
  for (const uint64_t sequence : {0u, 1u}) arriveWhole(wire::FrameKind::kEager, sequence, 77);
  start(late);
  for (const network::Parcel* each : {&early, &late}) {
    EXPECT_EQ(each->status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(each->status.message(), HasSubstr("100"));
    EXPECT_THAT(each->status.message(), HasSubstr("77"));
    EXPECT_THAT(each->storage, testing::Each(std::byte{0}));
  }
  EXPECT_EQ(queue_.numUnexpectedNames(), 0u);
}

TEST_F(ReceiveQueueTest, ALongReceiveIsClearedOnceWithoutAnRts) {
  network::Parcel receive = parcel(0, kLong);
  start(receive);
  receiveRts(0, kLong);
  const std::vector<wire::FrameHeader> sent = answers();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].kind, wire::FrameKind::kCts);
  EXPECT_EQ(sent[0].total, kLong);
  EXPECT_EQ(sent[0].offset, 0u);
}

TEST_F(ReceiveQueueTest, AnRtsWaitsForItsReceive) {
  receiveRts(0, kLong);
  EXPECT_THAT(answers(), IsEmpty());
  EXPECT_TRUE(queue_.probe(nameOf(0)));
  network::Parcel receive = parcel(0, kLong);
  start(receive);
  EXPECT_EQ(answers().size(), 1u);
  EXPECT_TRUE(arriveWhole(wire::FrameKind::kData, 0, kLong));
  expectWhole(receive);
}

TEST_F(ReceiveQueueTest, AnRtsOfAnotherLengthIsClearedAndFailsTheReceive) {
  network::Parcel early = parcel(0, kLong), late = parcel(1, kLong);
  start(early);
  for (const uint64_t sequence : {0u, 1u}) receiveRts(sequence, kLong + 1);
  start(late);
  for (const network::Parcel* each : {&early, &late}) {
    EXPECT_EQ(each->status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(each->status.message(), HasSubstr("300001"));
  }
  EXPECT_EQ(answers().size(), 2u) << "the senders learn the lengths";
  EXPECT_FALSE(queue_.isKnown(nameOf(0)) || queue_.isKnown(nameOf(1)));
}

TEST_F(ReceiveQueueTest, AReceiveUpToALimitTakesAShorterMessage) {
  network::Parcel receive = parcel(0, 1 << 20);
  receive.mayBeShorter = true;
  start(receive);
  const std::vector<wire::FrameHeader> sent = answers();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].offset, wire::kCtsUpTo);
  EXPECT_TRUE(arriveWhole(wire::FrameKind::kData, 0, kLong));
  expectWhole(receive);
  EXPECT_EQ(receive.numReceived, kLong);
}

TEST_F(ReceiveQueueTest, TheMessageOfACancelledReceiveIsDiscarded) {
  network::Parcel receive = parcel(0, kShort);
  start(receive);
  arrive(wire::FrameKind::kEager, 0, kShort, 0, 60);
  EXPECT_TRUE(queue_.cancel(receive));
  EXPECT_FALSE(queue_.cancel(receive));
  ASSERT_EQ(transport_.cancelledTargets.size(), 1u);
  EXPECT_EQ(transport_.cancelledTargets[0].data(), receive.storage.data());
  EXPECT_EQ(queue_.numUnexpectedNames(), 1u);
  EXPECT_FALSE(arrive(wire::FrameKind::kEager, 0, kShort, 60, 40));
  EXPECT_EQ(queue_.numUnexpectedNames(), 0u);
  EXPECT_EQ(receive.numFinished, 0);
}

TEST_F(ReceiveQueueTest, ACancelledReceiveStillClearsItsSender) {
  network::Parcel receive = parcel(0, kLong);
  start(receive);
  queue_.cancel(receive);
  (void)answers();
  receiveRts(0, kLong);
  EXPECT_EQ(answers().size(), 1u);
  EXPECT_FALSE(arriveWhole(wire::FrameKind::kData, 0, kLong));
  EXPECT_EQ(queue_.numUnexpectedNames(), 0u);
}

TEST_F(ReceiveQueueTest, ADroppedCommunicatorHoldsNothingAndClearsItsSenders) {
  arriveWhole(wire::FrameKind::kEager, 0, kShort);
  arrive(wire::FrameKind::kEager, 1, kShort, 0, 60);
  receiveRts(2, kLong);
  dropped_.insert(nameOf(0).communicator);
  queue_.dropCommunicator(nameOf(0).communicator);
  for (const uint64_t sequence : {0u, 1u, 2u}) EXPECT_FALSE(queue_.probe(nameOf(sequence))) << sequence;
  receiveRts(3, kLong);
  const std::vector<wire::FrameHeader> sent = answers();
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(sent[0].id, nameOf(2));
  EXPECT_EQ(sent[1].id, nameOf(3));
  EXPECT_FALSE(arrive(wire::FrameKind::kEager, 1, kShort, 60, 40));
  EXPECT_FALSE(arriveWhole(wire::FrameKind::kEager, 4, kShort));
  EXPECT_EQ(queue_.numUnexpectedNames(), 0u);
}

TEST_F(ReceiveQueueTest, MatchedMessagesReturnTheirCredit) {
  std::vector<wire::FrameHeader> sent;
  for (uint64_t sequence = 0; sequence < Credits::kWindowBytes / 4 / kMinEagerZeroCopyBytes + 1; ++sequence) {
    network::Parcel receive = parcel(sequence, kMinEagerZeroCopyBytes);
    start(receive);
    arriveWhole(wire::FrameKind::kEager, sequence, kMinEagerZeroCopyBytes);
    expectWhole(receive);
    for (const wire::FrameHeader& header : answers()) sent.push_back(header);
  }
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].kind, wire::FrameKind::kCredit);
  EXPECT_GE(sent[0].consumed, Credits::kWindowBytes / 4);
}

TEST_F(ReceiveQueueTest, MoreUnexpectedBytesThanTheWindowAreAViolation) {
  uint64_t numHeld = 0;
  while (queue_.violation().empty() && arriveWhole(wire::FrameKind::kEager, numHeld, kMaxEagerZeroCopyBytes)) ++numHeld;
  EXPECT_THAT(queue_.violation(), HasSubstr("16 MiB"));
  EXPECT_LE(numHeld * kMaxEagerZeroCopyBytes, Credits::kMaxUnexpectedBytes);
  EXPECT_GT((numHeld + 2) * kMaxEagerZeroCopyBytes, Credits::kMaxUnexpectedBytes);
}

TEST_F(ReceiveQueueTest, MoreBytesThanAMessageHasAreAViolation) {
  network::Parcel receive = parcel(0, kShort);
  start(receive);
  arrive(wire::FrameKind::kEager, 0, kShort, 0, 60);
  EXPECT_EQ(queue_.violation(), "");
  EXPECT_FALSE(arrive(wire::FrameKind::kEager, 0, kShort, 0, 60));
  EXPECT_THAT(queue_.violation(), HasSubstr("100"));
  EXPECT_EQ(receive.numFinished, 0);
}

TEST_F(ReceiveQueueTest, ALostPeerFailsReceivesWithTheirProgressAndLeavesWholeMessages) {
  network::Parcel receive = parcel(0, kShort), held = parcel(1, kShort);
  start(receive);
  arrive(wire::FrameKind::kEager, 0, kShort, 0, 60);
  arriveWhole(wire::FrameKind::kEager, 1, kShort);
  arrive(wire::FrameKind::kEager, 2, kShort, 0, 60);
  receiveRts(3, kLong);
  queue_.fail(unavailable("it has ended"));
  completions_.notifyAll();
  EXPECT_EQ(receive.status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(receive.status.message(), HasSubstr("60 of 100 bytes"));
  EXPECT_FALSE(queue_.isKnown(nameOf(2)) || queue_.probe(nameOf(3)));
  start(held);
  expectWhole(held);
}

TEST_F(ReceiveQueueTest, DetachedCallersAreNotNotifiedAndNotWritten) {
  network::Parcel receive = parcel(0, kShort);
  start(receive);
  queue_.detachCallers();
  arriveWhole(wire::FrameKind::kEager, 0, kShort);
  EXPECT_EQ(receive.numFinished, 0);
  EXPECT_THAT(receive.storage, testing::Each(std::byte{0}));
  ASSERT_FALSE(transport_.cancelledTargets.empty());
  EXPECT_EQ(transport_.cancelledTargets[0].data(), receive.storage.data());
}

TEST_F(ReceiveQueueTest, OnlyUrgentReceivesAreAwaited) {
  network::Parcel background = parcel(0, kShort), urgent = parcel(1, kShort);
  background.isBackground = true;
  start(background);
  EXPECT_EQ(queue_.awaited(), nullptr);
  start(urgent);
  EXPECT_EQ(queue_.awaited(), &urgent);
}

}  // namespace
}  // namespace agspeed::comm::messaging
