// SPDX-License-Identifier: Apache-2.0
// The reaction of a send queue to a peer's clear-to-send for a message of any length up to a limit.
#include "comm/messaging/send_queue.h"

#include <gtest/gtest.h>

#include "tests/comm/network/network_group.h"
#include "tests/comm/transport/fake_rail.h"

namespace agspeed::comm::messaging {
namespace {

constexpr uint64_t kRoom = 1 << 20;
constexpr size_t kEager = 100, kRendezvous = 300000;

class SendQueueTest : public testing::Test {
 protected:
  SendQueueTest() { transport_.can.isAcknowledging = true; }

  network::Parcel parcel(uint64_t sequence, size_t size) {
    network::Parcel made(1, {5, 6, sequence}, size);
    made.mayBeShorter = true;
    return made;
  }
  std::vector<wire::FrameKind> pumped() {
    queue_.pump();
    std::vector<wire::FrameKind> kinds;
    for (const transport::OutgoingFrame& frame : transport_.sent) kinds.push_back(frame.header.kind);
    return kinds;
  }

  transport::FakeTransport transport_;
  CompletionQueue completions_;
  Communicators dropped_;
  rendezvous::RankNames names_;
  EndpointContext context_{0, 1, names_, transport_, completions_, dropped_};
  Credits credits_;
  SendQueue queue_{context_, credits_};
};

TEST_F(SendQueueTest, AnEagerMessageLeavesNothingOfACtsThatCameBefore) {
  network::Parcel eager = parcel(0, kEager);
  queue_.receivedCts(eager.id, kRoom, true);
  EXPECT_EQ(queue_.numUnexpectedNames(), 1u);
  queue_.start(eager);
  EXPECT_EQ(queue_.numUnexpectedNames(), 0u);
  EXPECT_EQ(pumped(), std::vector{wire::FrameKind::kEager});
}

TEST_F(SendQueueTest, AnEagerMessageLeavesNothingOfACtsThatComesAfter) {
  network::Parcel first = parcel(0, kEager), second = parcel(1, kEager);
  queue_.start(first);
  queue_.start(second);
  for (const network::Parcel* each : {&second, &first}) queue_.receivedCts(each->id, kRoom, true);
  (void)pumped();
  EXPECT_EQ(queue_.numUnexpectedNames(), 0u);
}

TEST_F(SendQueueTest, AClearedMessageGoesWithoutAnRts) {
  network::Parcel message = parcel(3, kRendezvous);
  queue_.receivedCts(message.id, kRoom, true);
  queue_.start(message);
  const std::vector<wire::FrameKind> kinds = pumped();
  ASSERT_FALSE(kinds.empty());
  EXPECT_EQ(kinds.front(), wire::FrameKind::kData);
  EXPECT_EQ(transport_.sent.front().header.total, kRendezvous);
}

TEST_F(SendQueueTest, AMessageBeyondTheBoundFailsAndSaysSo) {
  network::Parcel early = parcel(0, kRoom + 1), late = parcel(1, kRoom + 1);
  queue_.receivedCts(early.id, kRoom, true);
  queue_.start(early);
  queue_.start(late);
  queue_.receivedCts(late.id, kRoom, true);
  completions_.notifyAll();
  for (const network::Parcel* each : {&early, &late}) {
    EXPECT_EQ(each->status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(each->status.message().find(std::to_string(kRoom)), std::string::npos) << each->status.toString();
  }
  EXPECT_EQ(pumped(), (std::vector{wire::FrameKind::kRts,
                                   wire::FrameKind::kRts}));  // so that the receiver learns of the messages
}

TEST_F(SendQueueTest, WhatIsDroppedKeepsNoCts) {
  network::Parcel message = parcel(0, kRendezvous);
  queue_.receivedCts(message.id, kRoom, true);
  dropped_.insert(message.id.communicator);
  queue_.dropCommunicator(message.id.communicator);
  queue_.receivedCts({message.id.communicator, 6, 1}, kRoom, true);
  EXPECT_EQ(queue_.numUnexpectedNames(), 0u);
}

}  // namespace
}  // namespace agspeed::comm::messaging
