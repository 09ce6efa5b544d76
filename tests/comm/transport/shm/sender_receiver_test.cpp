// SPDX-License-Identifier: Apache-2.0
// A sender and a receiver on one ring, which the test drives in one thread. Every frame arrives unchanged or was
// cancelled, and is acknowledged once. No byte is read after its send was cancelled, or written after its receive was
// cancelled.
#include "comm/messaging/credits.h"
#include "comm/transport/shm/receiver.h"
#include "comm/transport/shm/sender.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <map>
#include <memory>
#include <random>
#include <set>
#include <vector>

namespace agspeed::comm::shm {
namespace {

/// Keeps arrived frames by their sequence number.
struct ReceivedFrames final : transport::Transport::Sink {
  std::span<std::byte> place(int, const wire::FrameHeader& header) override {
    if (discarded.contains(header.id.sequence)) return {};
    std::vector<std::byte>& bytes = placed[header.id.sequence];
    bytes.assign(header.length, std::byte{});
    return bytes;
  }
  void arrived(int, const wire::FrameHeader& header) override {
    EXPECT_TRUE(complete.insert(header.id.sequence).second);
  }
  void acknowledged(int, uint64_t) override {}
  void writable(int) override {}
  void lost(int, transport::LossCause, const Status&) override {}

  std::map<uint64_t, std::vector<std::byte>> placed;
  std::set<uint64_t> complete;
  std::set<uint64_t> discarded;
};

struct SentFrames final : transport::Transport::Sink {
  std::span<std::byte> place(int, const wire::FrameHeader&) override { return {}; }
  void arrived(int, const wire::FrameHeader&) override {}
  void acknowledged(int, uint64_t token) override { EXPECT_TRUE(acknowledgedTokens.insert(token).second); }
  void writable(int) override { ++numWritable; }
  void lost(int, transport::LossCause, const Status&) override {}

  std::set<uint64_t> acknowledgedTokens;
  int numWritable = 0;
};

class SenderReceiver : public testing::TestWithParam<bool> {
 protected:
  SenderReceiver() {
    SharedMemory memory = SharedMemory::create(sizeof(Ring)).value();
    const Process self = {getpid(), geteuid()};
    SharedMemory theirs = SharedMemory::open(memory.descriptor(), sizeof(Ring)).value();
    sender = std::make_unique<Sender>(std::move(memory), 1, sent, bell, counters);
    receiver = std::make_unique<Receiver>(
        std::move(theirs), 0, self, canRead() ? watchProcess(self) : io::FileDescriptor(), received, bell, counters);
  }
  /// True if the receiver may read the sender's memory.
  bool canRead() const { return GetParam(); }

  void drive() {
    for (int i = 0; i < 100000 && (!sender->isFlushed() || !receiver->isEmpty()); ++i) {
      ASSERT_NE(receiver->read(), Receiver::Outcome::kBroken);
      sender->advance();
    }
    sender->advance();
  }

  Doorbell bell = Doorbell::create().value();
  ShmCounters counters;
  SentFrames sent;
  ReceivedFrames received;
  std::unique_ptr<Sender> sender;
  std::unique_ptr<Receiver> receiver;
};

transport::OutgoingFrame frameOf(const std::vector<std::byte>& payload, uint64_t number, wire::FrameKind kind) {
  transport::OutgoingFrame frame;
  frame.header.kind = kind;
  frame.header.id.sequence = number;
  frame.header.length = static_cast<uint32_t>(payload.size());
  frame.header.total = payload.size();
  frame.payload = payload;
  frame.token = number;
  return frame;
}

TEST_P(SenderReceiver, PassFramesOfAllSizesAndDropOnlyWhatWasCancelled) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  std::map<uint64_t, std::vector<std::byte>> payloads;
  std::map<uint64_t, std::vector<std::byte>> expected;
  std::set<uint64_t> cancelled;
  uint64_t next = 1;
  for (int round = 0; round < 3000; ++round) {
    const uint64_t choice = random() % 8;
    if (choice < 4 && sender->canSend()) {
      const bool isLarge = random() % 3 == 0;
      std::vector<std::byte> payload(1 + random() % (isLarge ? wire::kMaxPayloadBytes : 2000));
      for (std::byte& byte : payload) byte = std::byte(random());
      if (random() % 16 == 0) received.discarded.insert(next);
      expected[next] = payload;
      const std::vector<std::byte>& kept = payloads[next] = std::move(payload);
      sender->send(frameOf(kept, next, random() % 4 == 0 ? wire::FrameKind::kEager : wire::FrameKind::kData));
      ++next;
    } else if (choice < 6) {
      ASSERT_NE(receiver->read(), Receiver::Outcome::kBroken);
    } else if (choice == 6) {
      sender->advance();
    } else if (!payloads.empty() && random() % 4 == 0) {
      // After cancelSend(), change the bytes and free them at once.
      const auto victim = std::prev(payloads.end());
      sender->cancelSend(victim->first);
      std::fill(victim->second.begin(), victim->second.end(), std::byte{0x5a});
      cancelled.insert(victim->first);
      payloads.erase(victim);
    }
  }
  drive();
  EXPECT_TRUE(sender->canSend());
  EXPECT_EQ(sent.acknowledgedTokens.size(), next - 1);
  for (const auto& [number, payload] : expected) {
    const bool isThere = received.complete.contains(number);
    EXPECT_TRUE(isThere || cancelled.contains(number)) << "frame " << number << " is missing";
    const bool isKept = isThere && !received.discarded.contains(number);
    EXPECT_TRUE(!isKept || received.placed[number] == payload) << "frame " << number << " has other bytes";
  }
  EXPECT_EQ(counters.numReadBytes > 0, canRead());
  EXPECT_EQ(counters.numRefusals > 0, !canRead());
}

TEST_P(SenderReceiver, ACancelledFrameTakesNoOtherOfTheSameBytesWithIt) {
  const std::vector<std::byte> payload(40000, std::byte{7});
  sender->send(frameOf(payload, 1, wire::FrameKind::kData));
  sender->send(frameOf(payload, 2, wire::FrameKind::kData));
  sender->cancelSend(1);
  drive();
  ASSERT_TRUE(received.complete.contains(2));
  EXPECT_EQ(received.placed.at(2), payload);
  EXPECT_EQ(sent.acknowledgedTokens.size(), 2u);
}

/// Only copied payloads can be cancelled half-way; payloads that the receiver reads directly cannot.
class CopyingSenderReceiver : public SenderReceiver {};

TEST_P(CopyingSenderReceiver, ACancelledReceiveGetsNoFurtherBytes) {
  const std::vector<std::byte> refused(40000, std::byte{1});
  sender->send(frameOf(refused, 1, wire::FrameKind::kData));
  drive();
  const std::vector<std::byte> payload(wire::kMaxPayloadBytes, std::byte{7});
  sender->send(frameOf(payload, 2, wire::FrameKind::kData));
  ASSERT_EQ(receiver->read(), Receiver::Outcome::kSomething);
  std::vector<std::byte>& target = received.placed.at(2);
  receiver->cancelReceive(target);
  const std::vector<std::byte> before = target;
  drive();
  EXPECT_EQ(received.placed.at(2), before);
  EXPECT_TRUE(received.complete.contains(2));
}

TEST_P(SenderReceiver, AFullSenderSaysWhenItIsWritableAgain) {
  const std::vector<std::byte> payload(60000, std::byte{1});
  uint64_t number = 0;
  while (sender->canSend()) sender->send(frameOf(payload, ++number, wire::FrameKind::kEager));
  EXPECT_LE(number, 3u);
  EXPECT_EQ(sent.numWritable, 0);
  drive();
  EXPECT_EQ(sent.numWritable, 1);
  EXPECT_EQ(received.complete.size(), number);
}

TEST_P(SenderReceiver, AnEagerCopyIsItsSendersAgainAsSoonAsItIsSent) {
  const std::vector<std::byte> expected(60000, std::byte{1});
  std::vector<std::byte> payload(expected.size());
  uint64_t number = 0;
  while (sender->canSend()) {
    std::fill(payload.begin(), payload.end(), std::byte{1});
    sender->send(frameOf(payload, ++number, wire::FrameKind::kEager));
    std::fill(payload.begin(), payload.end(), std::byte{0x5a});
  }
  drive();
  for (uint64_t each = 1; each <= number; ++each) EXPECT_EQ(received.placed.at(each), expected) << "message " << each;
}

TEST_P(SenderReceiver, AnEagerZeroCopyMessageIsReadWhereItLiesAndItsSenderWoken) {
  const std::vector<std::byte> payload(messaging::kMaxEagerZeroCopyBytes, std::byte{3});
  sender->send(frameOf(payload, 1, wire::FrameKind::kEager));
  if (canRead()) {
    EXPECT_EQ(counters.numCopiedBytes, 0u);
  }
  EXPECT_FALSE(sender->isFlushed()) << "its memory is needed until it is read";
  sender->askToBeWoken();
  bell.setSleeping(true);
  counters.numRings = 0;
  drive();
  EXPECT_EQ(received.placed.at(1), payload);
  EXPECT_GT(counters.numRings, 0u) << "its sender waits for the end";
}

INSTANTIATE_TEST_SUITE_P(Reading, CopyingSenderReceiver, testing::Values(false));
INSTANTIATE_TEST_SUITE_P(Reading, SenderReceiver, testing::Values(true, false),
                         [](const auto& info) { return info.param ? "Allowed" : "Forbidden"; });

TEST(Doorbell, CostsNothingWhileItsOwnerIsAwakeAndRingsOnce) {
  Doorbell own = Doorbell::create().value();
  Doorbell theirs = Doorbell::open(io::FileDescriptor(dup(own.page())), io::FileDescriptor(dup(own.bell()))).value();
  EXPECT_FALSE(theirs.ring());
  own.setSleeping(true);
  EXPECT_TRUE(theirs.ring());
  EXPECT_FALSE(theirs.ring());
  uint64_t numRings = 0;
  ASSERT_EQ(read(own.bell(), &numRings, sizeof(numRings)), static_cast<ssize_t>(sizeof(numRings)));
  EXPECT_EQ(numRings, 1u);
}

}  // namespace
}  // namespace agspeed::comm::shm
