// SPDX-License-Identifier: Apache-2.0
// The frames that a messenger passes to its transport, and when. The test simulates the transport and the peer.
#include "comm/messaging/transport_messenger.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <deque>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/io/watch.h"
#include "tests/comm/network/network_group.h"
#include "tests/comm/transport/fake_rail.h"

namespace agspeed::comm::messaging {
namespace {

using testing::ElementsAre;

constexpr int kPeer = 1;
constexpr size_t kRendezvousBytes = wire::kZeroCopyBytes;

/// Acknowledges frames. At each tick it does what the test has set.
struct ScriptedTransport final : transport::FakeTransport {
  ScriptedTransport() { can.isAcknowledging = true; }

  bool isFlushed() const override { return tickActions.empty(); }
  io::Clock::time_point tick(io::Clock::time_point now) override {
    ++numTicks;
    if (!tickActions.empty()) {
      const auto action = std::move(tickActions.front());
      tickActions.pop_front();
      action();
    }
    return transport::FakeTransport::tick(now);
  }

  std::deque<std::function<void()>> tickActions;
  int numTicks = 0;
};

class TransportMessengerTest : public testing::Test {
 protected:
  TransportMessengerTest() {
    auto owned = std::make_unique<ScriptedTransport>();
    transport = owned.get();
    messenger = std::make_unique<TransportMessenger>(0, 2, names, std::move(owned), poller);
  }

  std::vector<wire::FrameKind> sentKinds() const {
    std::vector<wire::FrameKind> kinds;
    for (const transport::OutgoingFrame& frame : transport->sent) kinds.push_back(frame.header.kind);
    return kinds;
  }
  std::vector<const std::byte*> cancelledReceives() const {
    std::vector<const std::byte*> starts;
    for (const ByteView bytes : transport->cancelledTargets) starts.push_back(bytes.data());
    return starts;
  }
  /// The header of a frame of an eager message.
  static wire::FrameHeader part(const wire::MessageId& id, uint64_t total, uint64_t offset, uint32_t length) {
    wire::FrameHeader header;
    header.kind = wire::FrameKind::kEager;
    header.id = id;
    header.total = total;
    header.offset = offset;
    header.length = length;
    return header;
  }
  /// Returns the address at which the payload is placed.
  const std::byte* beginToArrive(const wire::FrameHeader& header) {
    return transport->sink->place(kPeer, header).data();
  }
  void arrive(const wire::FrameHeader& header, std::byte value = {}) {
    const std::span<std::byte> target = transport->sink->place(kPeer, header);
    std::fill(target.begin(), target.end(), value);
    transport->sink->arrived(kPeer, header);
  }
  /// Returns the credit that the next frame advertises to the peer.
  uint64_t advertisedCredit() {
    network::Parcel parcel(kPeer, {9, 9, ++numAdvertised}, 1);
    messenger->send(parcel);
    return transport->sent.back().header.consumed;
  }

  rendezvous::RankNames names;
  io::Poller poller;
  ScriptedTransport* transport = nullptr;
  std::unique_ptr<TransportMessenger> messenger;
  uint64_t numAdvertised = 0;
};

TEST_F(TransportMessengerTest, ATransportThatCopiesGetsAnEagerCopyAsItLiesAndOwesNoAcknowledgement) {
  transport->can.copiesSmall = true;
  network::Parcel parcel(kPeer, {1, 2, 3}, 1000);
  messenger->send(parcel);
  ASSERT_EQ(transport->sent.size(), 1u);
  EXPECT_EQ(transport->sent[0].payload.data(), parcel.storage.data());
  EXPECT_EQ(transport->sent[0].token, 0u);
  EXPECT_EQ(parcel.numFinished, 1);
}

TEST_F(TransportMessengerTest, AnEagerCopyThatWaitsKeepsItsTurn) {
  transport->can.copiesSmall = true;
  transport->room = 0;
  network::Parcel first(kPeer, {1, 2, 1}, 10), second(kPeer, {1, 2, 2}, 10);
  messenger->send(first);
  EXPECT_EQ(first.numFinished, 1);
  std::fill(first.storage.begin(), first.storage.end(), std::byte{0x5a});
  transport->room = 100;
  messenger->send(second);
  ASSERT_EQ(transport->sent.size(), 2u);
  EXPECT_EQ(transport->sent[0].header.id.sequence, 1u);
  EXPECT_EQ(transport->sent[0].payload[9], std::byte{0});
  EXPECT_EQ(transport->sent[1].header.id.sequence, 2u);
  for (const transport::OutgoingFrame& frame : transport->sent) transport->sink->acknowledged(kPeer, frame.token);
}

TEST_F(TransportMessengerTest, ATransportThatReadsLaterGetsACopyOfAnEagerMessage) {
  network::Parcel parcel(kPeer, {1, 2, 3}, 1000);
  messenger->send(parcel);
  EXPECT_EQ(parcel.numFinished, 1);
  std::fill(parcel.storage.begin(), parcel.storage.end(), std::byte{0x5a});
  ASSERT_EQ(transport->sent.size(), 1u);
  EXPECT_EQ(transport->sent[0].payload[999], std::byte{0});
  transport->sink->acknowledged(kPeer, transport->sent[0].token);
}

TEST_F(TransportMessengerTest, ControlFramesGoBeforeEagerCopiesAndThoseBeforeRendezvous) {
  transport->room = 0;
  network::Parcel rendezvous(kPeer, {1, 2, 1}, kRendezvousBytes), copied(kPeer, {1, 2, 2}, 10),
      receive(kPeer, {1, 2, 3}, kRendezvousBytes);
  wire::FrameHeader cts;
  cts.kind = wire::FrameKind::kCts;
  cts.id = rendezvous.id;
  cts.total = kRendezvousBytes;
  transport->sink->arrived(kPeer, cts);
  messenger->send(rendezvous);
  messenger->send(copied);
  messenger->receive(receive);
  transport->room = 100;
  transport->sink->writable(kPeer);
  EXPECT_THAT(sentKinds(), ElementsAre(wire::FrameKind::kCts, wire::FrameKind::kEager, wire::FrameKind::kData));
  EXPECT_EQ(rendezvous.numFinished, 0);
  transport->sink->acknowledged(kPeer, transport->sent[2].token);
  messenger->progress({});
  EXPECT_EQ(rendezvous.numFinished, 1);
  messenger->cancel(receive, unavailable("the test ends"));
}

TEST_F(TransportMessengerTest, AnEagerZeroCopyMessageIsSentFromTheCallersMemoryAndEndsWhenAcknowledged) {
  network::Parcel parcel(kPeer, {1, 2, 1}, kMinEagerZeroCopyBytes);
  messenger->send(parcel);
  ASSERT_EQ(transport->sent.size(), 2u) << "frames of at most 64 KiB";
  EXPECT_EQ(transport->sent[0].header.kind, wire::FrameKind::kEager);
  EXPECT_EQ(transport->sent[0].payload.data(), parcel.storage.data());
  for (const transport::OutgoingFrame& frame : std::vector(transport->sent)) {
    EXPECT_EQ(parcel.numFinished, 0);
    transport->sink->acknowledged(kPeer, frame.token);
    messenger->progress({});
  }
  EXPECT_EQ(parcel.numFinished, 1);
}

TEST_F(TransportMessengerTest, FramesAreLongWhileMuchFollowsAndShortAtTheEnd) {
  transport->can.segmentBytes = 16 * 1024;
  network::Parcel amidst(kPeer, {1, 2, 1}, kMaxEagerZeroCopyBytes), last(kPeer, {1, 2, 2}, kMaxEagerZeroCopyBytes);
  network::Parcel alike(kPeer, {1, 2, 3}, kMaxEagerZeroCopyBytes);
  const auto lengths = [&](network::Parcel& parcel) {
    transport->sent.clear();
    messenger->send(parcel);
    std::vector<size_t> found;
    for (const transport::OutgoingFrame& frame : std::vector(transport->sent)) {
      found.push_back(frame.payload.size() / 1024);
      transport->sink->acknowledged(kPeer, frame.token);
    }
    return found;
  };
  amidst.numFollowing = alike.numFollowing = 1 << 20;
  EXPECT_THAT(lengths(amidst), ElementsAre(64, 64));
  EXPECT_THAT(lengths(last), ElementsAre(32, 24, 18, 13, 13, 13, 13));
  transport->can.maxPayloadBytes = 52 * 1024;
  EXPECT_THAT(lengths(alike), ElementsAre(42, 42, 42)) << "no short remainder";
  messenger->progress({});
}

TEST_F(TransportMessengerTest, AnEagerZeroCopyMessageBeyondTheCreditBecomesARendezvous) {
  std::vector<std::unique_ptr<network::Parcel>> parcels;
  const auto sendNext = [&] {
    parcels.push_back(
        std::make_unique<network::Parcel>(kPeer, wire::MessageId{1, 2, parcels.size()}, kMaxEagerZeroCopyBytes));
    transport->sent.clear();
    messenger->send(*parcels.back());
  };
  do sendNext();
  while (sentKinds().front() == wire::FrameKind::kEager && parcels.size() < 100);
  EXPECT_THAT(sentKinds(), ElementsAre(wire::FrameKind::kRts));
  EXPECT_EQ(parcels.size(), Credits::kZeroCopyWindowBytes / kMaxEagerZeroCopyBytes) << "each costs a little more";
  messenger->cancel(*parcels.front(), unavailable("enough"));
  sendNext();
  EXPECT_EQ(sentKinds().front(), wire::FrameKind::kEager) << "what was cancelled needs no credit";
  for (const auto& parcel : parcels) {
    if (parcel->numFinished == 0) messenger->cancel(*parcel, unavailable("the test ends"));
  }
}

TEST_F(TransportMessengerTest, AnUnexpectedMessageIsHeldForItsReceive) {
  const size_t total = kMinEagerZeroCopyBytes;
  arrive(part({1, 2, 1}, total, 0, 60'000), std::byte{1});
  network::Parcel parcel(kPeer, {1, 2, 1}, total);
  messenger->receive(parcel);
  EXPECT_THAT(sentKinds(), ElementsAre()) << "eager messages need no CTS";
  arrive(part(parcel.id, total, 60'000, total - 60'000), std::byte{2});
  messenger->progress({});
  EXPECT_EQ(parcel.numFinished, 1);
  EXPECT_EQ(parcel.storage.front(), std::byte{1});
  EXPECT_EQ(parcel.storage.back(), std::byte{2});
}

TEST_F(TransportMessengerTest, EverythingFailsWhenThePeerIsLostButWhatHasArrived) {
  network::Parcel arrived(kPeer, {1, 2, 1}, 10), missing(kPeer, {1, 2, 2}, 10),
      waiting(kPeer, {1, 2, 3}, kRendezvousBytes);
  arrive(part(arrived.id, 10, 0, 10), std::byte{7});
  messenger->receive(missing);
  messenger->send(waiting);
  transport->sink->lost(kPeer, transport::LossCause::kClosed, unavailable("it went away"));
  messenger->progress({});
  EXPECT_EQ(missing.status.message(), "receiving from rank 1 failed after 0 of 10 bytes: it went away");
  EXPECT_EQ(waiting.status.message(), "sending to rank 1 failed after 0 of 65536 bytes: it went away");
  messenger->receive(arrived);
  EXPECT_TRUE(arrived.numFinished == 1 && arrived.status.isOk());
  EXPECT_EQ(arrived.storage[9], std::byte{7});
  network::Parcel later(kPeer, {1, 2, 4}, 10);
  messenger->send(later);
  EXPECT_EQ(later.status.message(), "it went away");
  EXPECT_FALSE(messenger->hasUnsent());
}

TEST_F(TransportMessengerTest, ReceivesOfWhatIsStillArrivingAreCancelledBeforeTheirMemoryGoes) {
  network::Parcel cancelled(kPeer, {1, 2, 1}, 10), other(kPeer, {1, 2, 2}, 11);
  const std::byte* const first = beginToArrive(part(cancelled.id, 10, 0, 10));
  const std::byte* const second = beginToArrive(part(other.id, 10, 0, 10));
  const std::byte* const third = beginToArrive(part({1, 2, 3}, 10, 0, 10));
  messenger->receive(cancelled);
  messenger->cancel(cancelled, unavailable("enough"));
  EXPECT_THAT(cancelledReceives(), ElementsAre(first));
  messenger->receive(other);
  EXPECT_EQ(other.status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(cancelledReceives(), ElementsAre(first, second));
  transport->sink->lost(kPeer, transport::LossCause::kSilent, unavailable("it went away"));
  EXPECT_THAT(cancelledReceives(), ElementsAre(first, second, third));
}

TEST_F(TransportMessengerTest, NothingIsWrittenToAWholeMessageByFramesThatOverlapOthers) {
  network::Parcel awaited(kPeer, {1, 2, 1}, 10), later(kPeer, {1, 2, 2}, 10);
  messenger->receive(awaited);
  for (const network::Parcel* parcel : {&awaited, &later}) {
    const std::byte* const target = beginToArrive(part(parcel->id, 10, 0, 5));
    for (int i = 0; i < 2; ++i) arrive(part(parcel->id, 10, 5, 5));
    EXPECT_THAT(cancelledReceives(), ElementsAre(target));
    transport->cancelledTargets.clear();
  }
  messenger->receive(later);
  messenger->progress({});
  EXPECT_TRUE(awaited.numFinished == 1 && later.numFinished == 1);
}

TEST_F(TransportMessengerTest, APeerThatSendsMoreOfAMessageThanThereIsOfItIsLost) {
  network::Parcel awaited(kPeer, {1, 2, 1}, 10), other(kPeer, {1, 2, 2}, 10);
  messenger->receive(awaited);
  messenger->receive(other);
  arrive(part(awaited.id, 10, 0, 6));
  EXPECT_EQ(beginToArrive(part(awaited.id, 10, 5, 5)), nullptr);
  arrive(part(awaited.id, 10, 5, 5));
  messenger->progress({});
  EXPECT_EQ(
      other.status.message(),
      "receiving from rank 1 failed after 0 of 10 bytes: rank 1 is lost to rank 0: it sent more than the 10 bytes "
      "of a message (communicator 1, sequence 1, step 2), as no intact rank does");
  EXPECT_EQ(awaited.status.code(), StatusCode::kUnavailable);
}

TEST_F(TransportMessengerTest, APeerThatSendsFarMoreThanItsCreditIsLost) {
  network::Parcel awaited(kPeer, {1, 2, 0}, 10);
  messenger->receive(awaited);
  uint64_t numHeld = 0;
  while (awaited.numFinished == 0 && numHeld < 1000) {
    arrive(part({1, 2, ++numHeld}, kMaxEagerZeroCopyBytes, 0, kMaxEagerZeroCopyBytes));
    messenger->progress({});
  }
  EXPECT_EQ(awaited.status.message(),
            "receiving from rank 1 failed after 0 of 10 bytes: rank 1 is lost to rank 0: it sent more than 16 MiB of "
            "unexpected messages, as no intact rank does");
}

TEST_F(TransportMessengerTest, APeerThatNamesMoreMessagesThanAnyJobHasIsLost) {
  network::Parcel awaited(kPeer, {1, 2, 0}, 10);
  messenger->receive(awaited);
  uint32_t numNamed = 0;
  for (; awaited.numFinished == 0 && numNamed < 3u << 20; ++numNamed) {
    wire::FrameHeader header = part({1, 3, numNamed}, wire::kZeroCopyBytes, 0, 0);
    header.kind = numNamed % 2 == 0 ? wire::FrameKind::kRts : wire::FrameKind::kCts;
    arrive(header);
    if (numNamed % 1024 == 0) messenger->progress({});
  }
  EXPECT_GT(numNamed, 1u << 20);
  EXPECT_EQ(awaited.status.message(),
            "receiving from rank 1 failed after 0 of 10 bytes: rank 1 is lost to rank 0: the two have named more than "
            "1048576 messages without starting them, as no intact job does");
}

TEST_F(TransportMessengerTest, APeerMayFillItsWindowAndCancelMidwayAsOftenAsItLikes) {
  Credits peer;
  uint64_t numSent = 0;
  const auto sendAll = [&](uint32_t numBytes) {
    while (peer.acquire(numBytes)) arrive(part({1, 2, ++numSent}, numBytes, 0, numBytes), std::byte(numBytes));
  };
  for (int i = 0; i < 200; ++i) {
    sendAll(kMaxEagerZeroCopyBytes);
    peer.releasePartial(kMaxEagerZeroCopyBytes);
  }
  sendAll(60'001);
  network::Parcel last(kPeer, {1, 2, numSent}, 60'001);
  messenger->receive(last);
  messenger->progress({});
  EXPECT_TRUE(last.numFinished == 1 && last.status.isOk()) << last.status.toString();
  EXPECT_EQ(last.storage[60'000], std::byte(60'001 & 0xff));
}

TEST_F(TransportMessengerTest, WhatHasFoundItsReceiveOrIsDroppedDoesNotCountAsUnexpected) {
  constexpr uint32_t kBytes = kMaxEagerZeroCopyBytes;
  for (uint64_t i = 1; i <= 2 * Credits::kMaxUnexpectedBytes / kBytes; ++i) {
    arrive(part({1, 2, i}, kBytes, 0, kBytes));
    beginToArrive(part({static_cast<uint32_t>(1 + i), 2, i}, kBytes, 0, 10));
    network::Parcel parcel(kPeer, {1, 2, i}, kBytes);
    messenger->receive(parcel);
    messenger->dropCommunicator(static_cast<uint32_t>(1 + i));
    ASSERT_TRUE(parcel.numFinished == 1 && parcel.status.isOk()) << parcel.status.toString();
  }
}

TEST_F(TransportMessengerTest, CreditComesBackOnceForAMessageThatIsCancelledMidway) {
  Credits credits;
  credits.consume(10);
  const uint64_t cost = credits.advertise();
  network::Parcel waited(kPeer, {1, 2, 1}, 10), held(kPeer, {1, 2, 2}, 10), wrong(kPeer, {1, 2, 3}, 11);
  messenger->receive(waited);
  arrive(part(waited.id, 10, 0, 4));
  messenger->cancel(waited, unavailable("enough"));
  arrive(part(waited.id, 10, 4, 6));
  EXPECT_EQ(advertisedCredit(), cost);
  beginToArrive(part(held.id, 10, 0, 10));
  messenger->receive(held);
  messenger->cancel(held, unavailable("enough"));
  arrive(part(held.id, 10, 0, 10));
  EXPECT_EQ(advertisedCredit(), 2 * cost);
  messenger->receive(wrong);
  arrive(part(wrong.id, 10, 0, 4));
  arrive(part(wrong.id, 10, 4, 6));
  EXPECT_EQ(advertisedCredit(), 3 * cost);
}

TEST_F(TransportMessengerTest, CreditComesBackForWhatIsDropped) {
  Credits credits;
  credits.consume(10);
  const uint64_t cost = credits.advertise();
  const wire::MessageId whole{5, 2, 1}, half{5, 2, 2}, later{5, 2, 3}, other{6, 2, 1};
  arrive(part(whole, 10, 0, 10));
  const std::byte* const target = beginToArrive(part(half, 10, 0, 4));
  arrive(part(half, 10, 0, 4));
  arrive(part(other, 10, 0, 10));
  EXPECT_EQ(advertisedCredit(), 0u);
  transport->cancelledTargets.clear();
  messenger->dropCommunicator(5);
  EXPECT_THAT(cancelledReceives(), ElementsAre(target));
  EXPECT_EQ(advertisedCredit(), cost);
  arrive(part(half, 10, 4, 6));
  EXPECT_EQ(advertisedCredit(), 2 * cost);
  arrive(part(later, 10, 5, 5));
  arrive(part(later, 10, 0, 5));
  EXPECT_EQ(advertisedCredit(), 3 * cost);
  EXPECT_TRUE(messenger->probe(kPeer, other));
}

TEST_F(TransportMessengerTest, AMessageThatComesWhileTheMessengerEndsDoesNoHarm) {
  network::Parcel receive(kPeer, {1, 2, 3}, 10);
  messenger->receive(receive);
  transport->tickActions.push_back([&] { arrive(part(receive.id, 10, 0, 10), std::byte{1}); });
  messenger.reset();
  EXPECT_EQ(receive.numFinished, 0);
  EXPECT_EQ(receive.storage[0], std::byte{0});
}

TEST_F(TransportMessengerTest, ABackgroundReceiveDoesNotConnectUntilThePeerSpeaks) {
  network::Parcel background(kPeer, {1, 0, 1}, 100);
  background.isBackground = true;
  messenger->receive(background);
  messenger->progress({});
  EXPECT_THAT(transport->wanted, ElementsAre());
  const wire::FrameHeader header = part(background.id, 100, 0, 100);
  transport->sink->place(kPeer, header);
  transport->sink->arrived(kPeer, header);
  EXPECT_THAT(transport->wanted, ElementsAre(kPeer));
  EXPECT_TRUE(messenger->progress({}));
  EXPECT_EQ(background.numFinished, 1);
}

TEST_F(TransportMessengerTest, AnotherReceiveConnectsOnce) {
  network::Parcel first(kPeer, {1, 0, 1}, 100), second(kPeer, {1, 0, 2}, 100);
  messenger->receive(first);
  messenger->receive(second);
  EXPECT_THAT(transport->wanted, ElementsAre(kPeer));
  messenger->cancel(first, unavailable("the test ends"));
  messenger->cancel(second, unavailable("the test ends"));
}

/// Tests of the time at which a messenger wakes up, with a descriptor that is always ready.
class WakeUpTest : public TransportMessengerTest {
 protected:
  WakeUpTest() {
    transport->coalesceFor = 10;
    transport->room = 0;
  }
  ~WakeUpTest() override {
    for (network::Parcel& parcel : parcels_) messenger->cancel(parcel, {});
  }

  /// Sends a message, for which the transport has no room. It is a background message, so the messenger sends no probe
  /// beside it.
  void send(size_t numBytes) {
    network::Parcel& parcel = parcels_.emplace_back(kPeer, wire::MessageId{1, 2, parcels_.size()}, numBytes);
    parcel.isBackground = true;
    messenger->send(parcel);
    if (parcel.numFinished > 0) parcels_.pop_back();
  }
  void sendMuch() {
    for (int i = 0; i < 4; ++i) send(kRendezvousBytes + 20'000);
  }
  /// True if most waits do not handle the ready descriptor for at least a millisecond. A tick would end a wait early,
  /// so each trial begins right after a tick.
  bool coalesces() {
    int numLeftAlone = 0;
    for (int i = 0; i < kTrials; ++i) {
      for (const int before = transport->numTicks; transport->numTicks == before;) messenger->progress({});
      const io::Clock::time_point wokenAt = lookedAt_.back();
      lookedAt_.clear();
      endsWait_ = true;
      messenger->progress(io::Clock::now() + std::chrono::hours(1));
      if (lookedAt_.front() - wokenAt >= std::chrono::milliseconds(1)) ++numLeftAlone;
    }
    return numLeftAlone > kTrials / 2;
  }

 private:
  static constexpr int kTrials = 11;

  std::deque<network::Parcel> parcels_;
  std::vector<io::Clock::time_point> lookedAt_;
  bool endsWait_ = false;  ///< the next call of the handler calls wake()
  io::Watch watch_{poller, io::FileDescriptor(eventfd(1, EFD_CLOEXEC)), EPOLLIN, [this] {
                     lookedAt_.push_back(io::Clock::now());
                     if (std::exchange(endsWait_, false)) poller.wake();
                   }};
};

TEST_F(WakeUpTest, IsAtOnceWhileNothingIsToBeSent) { EXPECT_FALSE(coalesces()); }

TEST_F(WakeUpTest, IsAtOnceWhileLittleIsToBeSent) {
  send(kRendezvousBytes + 20'000);
  EXPECT_FALSE(coalesces());
}

TEST_F(WakeUpTest, IsCoalescedWhileMuchIsToBeSentOnAWayThatStaysBusy) {
  sendMuch();
  EXPECT_TRUE(coalesces());
}

TEST_F(WakeUpTest, IsAtOnceWhileAnEagerCopyWaits) {
  sendMuch();
  send(10);
  EXPECT_FALSE(coalesces());
  transport->room = 1;
  transport->sink->writable(kPeer);
  EXPECT_TRUE(coalesces()) << "it has gone";
}

TEST_F(WakeUpTest, IsAtOnceWhereTheWayMayBeFreeAtAnyMoment) {
  sendMuch();
  transport->coalesceFor = 0.9e-3;
  EXPECT_FALSE(coalesces());
}

}  // namespace
}  // namespace agspeed::comm::messaging
