// SPDX-License-Identifier: Apache-2.0
#include "comm/transport/multirail/multirail_transport.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/comm/transport/fake_rail.h"

namespace agspeed::comm::multirail {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

struct Observer final : transport::Transport::Sink {
  std::span<std::byte> place(int, const wire::FrameHeader& header) override {
    return std::span(memory).first(header.length);
  }
  void arrived(int, const wire::FrameHeader& header) override { numbers.push_back(header.number); }
  void acknowledged(int, uint64_t token) override { tokens.push_back(token); }
  void writable(int) override { ++numWritable; }
  void lost(int, transport::LossCause, const Status& status) override { failure = status.message(); }

  std::vector<std::byte> memory = std::vector<std::byte>(1 << 16);
  std::vector<uint64_t> numbers;
  std::vector<uint64_t> tokens;
  int numWritable = 0;
  std::string failure;
};

class MultirailTransportTest : public testing::Test {
 protected:
  static constexpr int kPeer = 1;
  static constexpr uint32_t kLongest = 128 * 1024;

  MultirailTransportTest() {
    transport::Rails owned;
    for (transport::FakeRail*& rail : rails_) {
      owned.push_back(std::make_unique<transport::FakeRail>());
      rail = static_cast<transport::FakeRail*>(owned.back().get());
      rail->can.maxPayloadBytes = kLongest;
    }
    multirail_ = std::make_unique<MultirailTransport>(std::move(owned), names_, MultirailOptions{});
    multirail_->attach(sink_);
    multirail_->connect(kPeer);
    for (transport::FakeRail* rail : rails_) rail->sink->writable(kPeer);
  }

  void send(uint64_t token, size_t size = 10000) {
    transport::OutgoingFrame frame;
    frame.header.kind = wire::FrameKind::kData;
    frame.header.length = static_cast<uint32_t>(size);
    frame.header.total = size;
    frame.payload = std::span(payload_).first(size);
    frame.token = token;
    multirail_->send(kPeer, frame);
  }
  static wire::FrameHeader incoming(uint64_t number, uint32_t attempt = 0, uint64_t acknowledged = 1) {
    wire::FrameHeader header;
    header.kind = wire::FrameKind::kData;
    header.length = 100;
    header.total = 1000;
    header.number = number;
    header.attempt = attempt;
    header.acknowledged = acknowledged;
    return header;
  }
  void lose(int rail, transport::LossCause cause) {
    rails_[rail]->room = 0;
    rails_[rail]->sink->lost(kPeer, cause, unavailable("it went away"));
  }

  std::vector<std::byte> payload_ = std::vector<std::byte>(1 << 16);
  transport::FakeRail* rails_[2] = {};
  Observer sink_;
  rendezvous::RankNames names_;
  std::unique_ptr<MultirailTransport> multirail_;
};

TEST_F(MultirailTransportTest, FramesAlternateBetweenEqualRails) {
  for (uint64_t token = 1; token <= 6; ++token) send(token);
  EXPECT_EQ(rails_[0]->sent.size(), 3u);
  EXPECT_EQ(rails_[1]->sent.size(), 3u);
}

TEST_F(MultirailTransportTest, FramesOfAllSizesTakeTheRailOnWhichTheyArriveFirst) {
  rails_[0]->secondsPerByte = 4e-6;
  rails_[1]->secondsPerByte = 1e-6;
  uint64_t token = 0;
  for (const size_t size : {100, 16384}) {
    for (const auto rail : rails_) rail->sent.clear();
    for (int i = 0; i < 10; ++i) send(++token, size);
    EXPECT_EQ(rails_[0]->sent.size(), 2u) << size << " bytes";
    EXPECT_EQ(rails_[1]->sent.size(), 8u) << size << " bytes";
  }
}

TEST_F(MultirailTransportTest, AFullRailIsLeftOut) {
  rails_[0]->room = 1;
  for (uint64_t token = 1; token <= 4; ++token) send(token);
  EXPECT_EQ(rails_[1]->sent.size(), 3u);
  rails_[1]->room = 0;
  EXPECT_FALSE(multirail_->canSend(kPeer));
}

TEST_F(MultirailTransportTest, ASlowRailIsNotGivenWhatAFullOneDeliversMuchSooner) {
  rails_[0]->secondsPerByte = 1e-7;
  rails_[0]->room = 0;
  rails_[1]->secondsPerByte = 3e-6;
  EXPECT_FALSE(multirail_->canSend(kPeer));
  rails_[1]->secondsPerByte = 1.5e-7;
  EXPECT_TRUE(multirail_->canSend(kPeer));
  rails_[0]->secondsPerByte = 1e-8;  // a frame would arrive earlier there, but only by two milliseconds
  EXPECT_TRUE(multirail_->canSend(kPeer));
}

TEST_F(MultirailTransportTest, CoalescesForAsLongAsTheFirstOfTheRailsThatLeadToThePeer) {
  rails_[0]->coalesceFor = 3e-3;
  rails_[1]->coalesceFor = 5e-3;
  EXPECT_EQ(multirail_->coalesceSeconds(kPeer), 3e-3);
  rails_[0]->sink->lost(kPeer, transport::LossCause::kUnreachable, unavailable("cut"));
  EXPECT_EQ(multirail_->coalesceSeconds(kPeer), 5e-3);
  rails_[1]->sink->lost(kPeer, transport::LossCause::kUnreachable, unavailable("cut"));
  EXPECT_EQ(multirail_->coalesceSeconds(kPeer), 0);
}

TEST_F(MultirailTransportTest, FramesAreLongWhereRailsAreAlikeAndQuick) {
  send(1, 0);  // in flight
  const auto longest = [&](double first, double second) {
    rails_[0]->secondsPerByte = first;
    rails_[1]->secondsPerByte = second;
    multirail_->tick(io::Clock::now());
    return multirail_->capabilities(kPeer).maxPayloadBytes;
  };
  EXPECT_EQ(longest(2e-8, 2e-8), kLongest);
  EXPECT_EQ(longest(9e-9, 3.6e-8), kLongest / 2) << "a fourth of the rate";
  EXPECT_EQ(longest(2e-9, 1e-8), kLongest) << "both quick";
  EXPECT_EQ(longest(2e-7, 2e-7), 40000u) << "8 ms";
  EXPECT_EQ(longest(2e-6, 1e-6), 16384u) << "both slow";
  lose(0, transport::LossCause::kStalled);
  EXPECT_EQ(longest(1e-6, 2e-8), kLongest) << "the slow one is gone";
}

TEST_F(MultirailTransportTest, FramesThatWaitForAFullRailGoOnWhenItIsLost) {
  rails_[0]->secondsPerByte = 1e-7;
  rails_[0]->room = 0;
  rails_[1]->secondsPerByte = 3e-6;
  ASSERT_FALSE(multirail_->canSend(kPeer));
  sink_.numWritable = 0;
  lose(0, transport::LossCause::kStalled);
  EXPECT_TRUE(multirail_->canSend(kPeer));
  EXPECT_EQ(sink_.numWritable, 1);
}

TEST_F(MultirailTransportTest, AcknowledgedFramesAreDone) {
  for (uint64_t token = 1; token <= 4; ++token) send(token);
  rails_[0]->sink->arrived(kPeer, incoming(1, 0, 4));
  EXPECT_THAT(sink_.tokens, ElementsAre(1, 2, 3));
}

TEST_F(MultirailTransportTest, WhatIsAcknowledgedBeforeItsRailHasWrittenItIsNotReadAnyMore) {
  rails_[0]->room = 1;  // busy with the first frame
  for (uint64_t token = 1; token <= 2; ++token) send(token);
  rails_[1]->sink->arrived(kPeer, incoming(1, 0, 3));
  ASSERT_THAT(sink_.tokens, ElementsAre(1, 2));
  ASSERT_EQ(rails_[0]->cancelledPayloads.size(), 1u) << "the second one was written whole";
  EXPECT_EQ(rails_[0]->cancelledPayloads[0].size(), 10000u);
}

TEST_F(MultirailTransportTest, WhatALostRailCarriedIsSentOnAnother) {
  for (uint64_t token = 1; token <= 4; ++token) send(token);
  rails_[1]->sink->arrived(kPeer, incoming(1, 0, 2));
  lose(0, transport::LossCause::kStalled);
  ASSERT_EQ(rails_[1]->sent.size(), 3u);
  EXPECT_EQ(rails_[1]->sent.back().token, 3u);
  EXPECT_EQ(rails_[1]->sent.back().header.attempt, 1u);
  EXPECT_EQ(multirail_->counters().numResent, 1u);
}

TEST_F(MultirailTransportTest, WhatAStalledRailStillCarriesIsNotSentAgainOnceItIsBack) {
  for (uint64_t token = 1; token <= 2; ++token) send(token);
  rails_[1]->room = 0;
  lose(0, transport::LossCause::kStalled);
  ASSERT_TRUE(rails_[1]->sent.size() == 1 && rails_[0]->sent.size() == 1);
  rails_[0]->room = 8;
  rails_[0]->sink->writable(kPeer);
  EXPECT_EQ(rails_[0]->sent.size(), 1u);
  EXPECT_EQ(multirail_->counters().numResent, 0u);
  lose(0, transport::LossCause::kClosed);
  rails_[1]->room = 8;
  rails_[1]->sink->writable(kPeer);
  EXPECT_EQ(rails_[1]->sent.size(), 2u);
}

TEST_F(MultirailTransportTest, WhatAStalledRailCarriedIsSentAgainOnceItIsLost) {
  for (uint64_t token = 1; token <= 2; ++token) send(token);
  rails_[1]->room = 0;
  lose(0, transport::LossCause::kStalled);
  lose(0, transport::LossCause::kUnreachable);
  rails_[0]->room = 8;
  rails_[0]->sink->writable(kPeer);
  EXPECT_EQ(rails_[0]->sent.size(), 2u);
  EXPECT_EQ(multirail_->counters().numResent, 1u);
}

TEST_F(MultirailTransportTest, ALinkStateIsSentOverAnotherRail) {
  rails_[1]->room = 0;
  lose(0, transport::LossCause::kUnreachable);
  multirail_->linkChanged(0, false);
  multirail_->linkChanged(0, false);
  rails_[1]->room = 10;
  rails_[1]->sink->writable(kPeer);
  ASSERT_EQ(rails_[1]->sent.size(), 1u) << "once, as soon as there is room";
  const wire::FrameHeader& lost = rails_[1]->sent.back().header;
  EXPECT_EQ(lost.kind, wire::FrameKind::kLinkState);
  EXPECT_EQ(lost.number, 0u) << "it may get lost";
  EXPECT_THAT(std::pair(lost.offset, lost.total), Pair(0u, 0u));
  multirail_->linkChanged(0, true);
  ASSERT_EQ(rails_[1]->sent.size(), 2u);
  EXPECT_THAT(std::pair(rails_[1]->sent.back().header.offset, rails_[1]->sent.back().header.total), Pair(0u, 1u));
}

TEST_F(MultirailTransportTest, RailsLearnThePeersLinkStates) {
  wire::FrameHeader header;
  header.kind = wire::FrameKind::kLinkState;
  header.offset = 1;
  rails_[0]->sink->arrived(kPeer, header);
  for (const transport::FakeRail* rail : rails_) EXPECT_THAT(rail->peerLinks, ElementsAre(Pair(1u, false)));
  EXPECT_THAT(sink_.numbers, ElementsAre()) << "the sink does not receive it";
}

TEST_F(MultirailTransportTest, AFrameArrivesOnce) {
  for (int rail = 0; rail < 2; ++rail) {
    rails_[rail]->sink->place(kPeer, incoming(1));
    rails_[rail]->sink->arrived(kPeer, incoming(1));
  }
  EXPECT_THAT(sink_.numbers, ElementsAre(1));
  EXPECT_EQ(multirail_->counters().numDuplicates, 1u);
}

TEST_F(MultirailTransportTest, AnAcknowledgementThatFoundNoRoomLeavesAsSoonAsThereIsSome) {
  for (transport::FakeRail* rail : rails_) rail->room = 0;
  wire::FrameHeader end = incoming(1);
  end.length = 1000;
  end.total = end.length + (end.offset = 200'000);
  rails_[0]->sink->place(kPeer, end);
  rails_[0]->sink->arrived(kPeer, end);
  EXPECT_FALSE(multirail_->isFlushed()) << "the sender of a large message waits for it";
  rails_[1]->room = 1;
  rails_[1]->sink->writable(kPeer);
  ASSERT_EQ(rails_[1]->sent.size(), 1u);
  EXPECT_EQ(rails_[1]->sent.back().header.kind, wire::FrameKind::kAck);
  EXPECT_EQ(rails_[1]->sent.back().header.acknowledged, 2u);
  EXPECT_TRUE(multirail_->isFlushed());
  rails_[0]->room = 1;
  lose(1, transport::LossCause::kClosed);
  EXPECT_FALSE(multirail_->isFlushed()) << "it may have been lost with its rail";
  rails_[0]->sink->writable(kPeer);
  EXPECT_EQ(rails_[0]->sent.back().header.acknowledged, 2u);
  EXPECT_TRUE(multirail_->isFlushed());
}

TEST_F(MultirailTransportTest, OnlyTheRailThatPlacesThereHearsOfACancelledReceiveAndItsFrameStillCounts) {
  const std::span<std::byte> target = rails_[0]->sink->place(kPeer, incoming(1));
  for (int i = 0; i < 2; ++i) multirail_->cancelReceive(kPeer, target);
  EXPECT_EQ(rails_[0]->cancelledTargets.size(), 1u);
  EXPECT_EQ(rails_[1]->cancelledTargets.size(), 0u);
  rails_[0]->sink->arrived(kPeer, incoming(1));
  EXPECT_THAT(sink_.numbers, ElementsAre(1));
}

TEST_F(MultirailTransportTest, OfTwoCopiesTheLaterAttemptCounts) {
  EXPECT_EQ(rails_[0]->sink->place(kPeer, incoming(1, 0)).size(), 100u);
  EXPECT_EQ(rails_[1]->sink->place(kPeer, incoming(1, 1)).size(), 100u);
  EXPECT_EQ(rails_[0]->cancelledTargets.size(), 1u);
  rails_[0]->sink->arrived(kPeer, incoming(1, 0));
  EXPECT_TRUE(sink_.numbers.empty());
  rails_[1]->sink->arrived(kPeer, incoming(1, 1));
  EXPECT_THAT(sink_.numbers, ElementsAre(1));
}

TEST_F(MultirailTransportTest, AnEarlierAttemptDoesNotDisturbALaterOne) {
  EXPECT_EQ(rails_[1]->sink->place(kPeer, incoming(1, 1)).size(), 100u);
  EXPECT_TRUE(rails_[0]->sink->place(kPeer, incoming(1, 0)).empty());
  EXPECT_TRUE(rails_[1]->cancelledTargets.empty());
  rails_[1]->sink->arrived(kPeer, incoming(1, 1));
  EXPECT_THAT(sink_.numbers, ElementsAre(1));
}

TEST_F(MultirailTransportTest, ACancelledFrameIsSentAgainWithoutItsPayloadAndOthersOfTheSameBytesWithIt) {
  for (uint64_t token = 1; token <= 3; ++token) send(token);
  multirail_->cancelSend(kPeer, 1, payload_);
  lose(0, transport::LossCause::kClosed);
  ASSERT_EQ(rails_[1]->sent.size(), 3u);
  const transport::OutgoingFrame &cancelled = rails_[1]->sent[1], &other = rails_[1]->sent[2];
  EXPECT_EQ(cancelled.header.kind, wire::FrameKind::kVoid);
  EXPECT_TRUE(cancelled.payload.empty());
  EXPECT_EQ(cancelled.header.number, 1u);
  EXPECT_EQ(other.header.kind, wire::FrameKind::kData);
  EXPECT_EQ(other.payload.size(), 10000u);
}

TEST_F(MultirailTransportTest, APeerThatRefusesConnectionsIsGivenUp) {
  lose(0, transport::LossCause::kRefused);
  EXPECT_EQ(sink_.failure, "");
  lose(1, transport::LossCause::kClosed);
  EXPECT_EQ(sink_.failure, "");
  lose(1, transport::LossCause::kRefused);
  const auto numTicksUntilLost = [&] {
    int numTicks = 0;
    while (sink_.failure.empty() && numTicks < 100) multirail_->tick(io::Clock::now()), ++numTicks;
    return numTicks;
  };
  multirail_->tick(io::Clock::now());
  multirail_->tick(io::Clock::now());
  EXPECT_EQ(sink_.failure, "") << "what it sent before may not have been read";
  rails_[0]->sink->arrived(kPeer, incoming(1, 0));
  EXPECT_EQ(numTicksUntilLost(), 3) << "since something arrived";
  EXPECT_THAT(sink_.failure, HasSubstr("rank 1 is lost to rank 0: its process has ended"));
  EXPECT_FALSE(multirail_->canSend(kPeer));
}

TEST_F(MultirailTransportTest, RailsSeekNoPeerThatIsGivenUp) {
  lose(0, transport::LossCause::kStalled);
  lose(1, transport::LossCause::kUnreachable);
  EXPECT_THAT(rails_[0]->unwanted, ElementsAre());
  multirail_->tick(io::Clock::now() + std::chrono::seconds(11));
  ASSERT_NE(sink_.failure, "");
  for (const transport::FakeRail* rail : rails_) EXPECT_THAT(rail->unwanted, ElementsAre(kPeer));
}

TEST_F(MultirailTransportTest, APeerThatRefusesConnectionsIsReadToItsEnd) {
  rails_[1]->isHeard = true;
  lose(0, transport::LossCause::kRefused);
  lose(1, transport::LossCause::kRefused);
  for (int i = 0; i < 100; ++i) multirail_->tick(io::Clock::now());
  EXPECT_EQ(sink_.failure, "") << "what it sent last is still under way";
  rails_[1]->isHeard = false;
  multirail_->tick(io::Clock::now());
  EXPECT_THAT(sink_.failure, HasSubstr("its process has ended"));
}

TEST_F(MultirailTransportTest, AnAddressWithoutAPeerIsKnownSoon) {
  constexpr int kNew = 2;
  multirail_->connect(kNew);
  for (transport::FakeRail* rail : rails_)
    rail->sink->lost(kNew, transport::LossCause::kUnreachable, unavailable("no answer to connecting"));
  EXPECT_EQ(sink_.failure, "");
  multirail_->tick(io::Clock::now() + std::chrono::milliseconds(1100));
  EXPECT_THAT(sink_.failure, HasSubstr("no rail has led to it"));
}

TEST_F(MultirailTransportTest, ARailThatThePeerHasNoRailForSaysNothingOfIt) {
  constexpr int kNew = 2;
  multirail_->connect(kNew);
  rails_[1]->sink->lost(kNew, transport::LossCause::kUnpaired, unavailable("the peer has no rail left for it"));
  const io::Clock::time_point later = io::Clock::now() + std::chrono::milliseconds(1100);
  multirail_->tick(later);
  EXPECT_EQ(sink_.failure, "") << "the other is connecting";
  rails_[0]->sink->lost(kNew, transport::LossCause::kUnreachable, unavailable("no answer to connecting"));
  EXPECT_EQ(sink_.failure, "") << "it is tried again";
  multirail_->tick(later);
  EXPECT_THAT(sink_.failure, HasSubstr("no rail has led to it"));
  EXPECT_THAT(sink_.failure, HasSubstr("no answer to connecting"));
}

TEST_F(MultirailTransportTest, APeerThatListensOnFewerRailsIsKnownToHaveEnded) {
  constexpr int kNew = 2;
  multirail_->connect(kNew);
  rails_[0]->sink->lost(kNew, transport::LossCause::kRefused, unavailable("refused"));
  rails_[1]->sink->lost(kNew, transport::LossCause::kUnpaired, unavailable("the peer has no rail left for it"));
  for (int i = 0; i < 3; ++i) multirail_->tick(io::Clock::now());
  EXPECT_THAT(sink_.failure, HasSubstr("its process has ended"));
}

TEST_F(MultirailTransportTest, APeerTooBusyForAHandshakeIsWaitedFor) {
  for (const transport::LossCause cause : {transport::LossCause::kClosed, transport::LossCause::kSilent}) {
    const int peer = 2 + static_cast<int>(cause);
    multirail_->connect(peer);
    rails_[0]->sink->lost(peer, cause, unavailable("no handshake"));
    for (transport::FakeRail* rail : rails_)
      rail->sink->lost(peer, transport::LossCause::kUnreachable, unavailable("no answer"));
    multirail_->tick(io::Clock::now() + std::chrono::seconds(9));
    EXPECT_EQ(sink_.failure, "") << toString(cause);
    multirail_->tick(io::Clock::now() + std::chrono::seconds(11));
    EXPECT_THAT(sink_.failure, HasSubstr("no rail has led to it")) << toString(cause);
    sink_.failure.clear();
  }
}

TEST_F(MultirailTransportTest, AnUnreachablePeerIsGivenUpInTime) {
  lose(0, transport::LossCause::kStalled);
  lose(1, transport::LossCause::kUnreachable);
  multirail_->tick(io::Clock::now() + std::chrono::seconds(9));
  EXPECT_EQ(sink_.failure, "");
  multirail_->tick(io::Clock::now() + std::chrono::seconds(11));
  EXPECT_THAT(sink_.failure, HasSubstr("no rail has led to it"));
}

}  // namespace
}  // namespace agspeed::comm::multirail
