// SPDX-License-Identifier: Apache-2.0
// Random and corrupted streams of frames at a connection's receiver. Only intact frames get through.
#include <sys/socket.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "comm/transport/tcp/receiver.h"
#include "tests/fuzz/counted_memory.h"
#include "tests/fuzz/random_bytes.h"

namespace agspeed::comm::tcp {
namespace {

/// The frames that were sent, and a sink that compares arrivals with them.
class StreamFuzz : public testing::TestWithParam<security::Protection>,
                   public transport::Transport::Sink,
                   public Receiver::Owner {
 protected:
  struct Sent {
    wire::FrameHeader header;
    Bytes payload;
  };

  std::span<std::byte> place(int, const wire::FrameHeader& header) override {
    memory_.assign(header.length, std::byte{0});
    return header.length % 7 == 3 ? std::span<std::byte>() : std::span(memory_);
  }
  void arrived(int, const wire::FrameHeader& header) override {
    ASSERT_LT(numArrived_, sent_.size());
    const Sent& sent = sent_[numArrived_++];
    EXPECT_EQ(header.number, sent.header.number);
    EXPECT_EQ(header.total, sent.header.total);
    const bool isKept = header.length > 0 && header.length % 7 != 3;
    EXPECT_TRUE(!isKept || memory_ == sent.payload) << header.length << " bytes";
  }
  void acknowledged(int, uint64_t) override {}
  void writable(int) override {}
  void lost(int, transport::LossCause, const Status&) override {}
  void receiverLost(int, transport::LossCause cause) override {
    isLost_ = true;
    cause_ = cause;
  }

  /// Returns some frames, sealed.
  Bytes makeFrames(RandomBytes& random) {
    security::Sealer sealer(GetParam(), key_);
    Bytes stream;
    sent_.clear();
    for (uint64_t number = 1; number <= 1 + random.below(6); ++number) {
      Sent sent;
      sent.header.kind = random.below(2) == 0 ? wire::FrameKind::kData : wire::FrameKind::kCredit;
      sent.header.number = number;
      sent.header.total = random.below(1000);
      if (sent.header.kind == wire::FrameKind::kData) {
        sent.payload = random.bytes(1 + random.below(random.below(8) == 0 ? wire::kMaxPayloadBytes : 3000));
        sent.header.length = static_cast<uint32_t>(sent.payload.size());
        sent.header.total = sent.payload.size();
      }
      append(stream, sealer, sent.header, sent.payload);
      sent_.push_back(std::move(sent));
    }
    return stream;
  }
  static void append(Bytes& stream, security::Sealer& sealer, const wire::FrameHeader& header, Bytes payload) {
    const size_t tagSize = tagBytes(sealer.protection());
    Bytes prefix(wire::kHeaderBytes + tagSize), tag(tagSize);
    encodeHeader(header, std::span(prefix).first<wire::kHeaderBytes>());
    sealer.sign(std::span(prefix).first(wire::kHeaderBytes), std::span(prefix).subspan(wire::kHeaderBytes));
    stream.insert(stream.end(), prefix.begin(), prefix.end());
    if (payload.empty()) return;
    sealer.protection() == security::Protection::kEncrypted ? sealer.encrypt(payload, payload, tag)
                                                            : sealer.sign(payload, tag);
    stream.insert(stream.end(), payload.begin(), payload.end());
    stream.insert(stream.end(), tag.begin(), tag.end());
  }
  /// Passes the bytes to a receiver in parts.
  void feed(const Bytes& stream, RandomBytes& random) {
    int ends[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
    numArrived_ = 0;
    isLost_ = false;
    {
      io::Poller poller;
      Receiver receiver(poller, Socket(ends[0]), security::Opener(GetParam(), key_), *this, 1, *this);
      for (size_t at = 0; at < stream.size() && !isLost_;) {
        const size_t wanted = std::min<size_t>(stream.size() - at, 1 + random.below(100000));
        const ssize_t written = ::send(ends[1], stream.data() + at, wanted, MSG_NOSIGNAL);
        if (written > 0) at += static_cast<size_t>(written);
        poller.wait({});
      }
      for (int i = 0; i < 3; ++i) poller.wait({});
    }
    close(ends[1]);
  }

  const security::SealKey key_{std::byte{9}};
  std::vector<Sent> sent_;
  Bytes memory_;
  size_t numArrived_ = 0;
  bool isLost_ = false;
  transport::LossCause cause_ = transport::LossCause::kClosed;
};

TEST_P(StreamFuzz, WhatIsSpoiledNeverArrives) {
  RandomBytes random;
  SCOPED_TRACE("seed " + std::to_string(random.seed()));
  for (int round = 0; round < 150 && !HasFailure(); ++round) {
    const Bytes stream = makeFrames(random);
    feed(stream, random);
    EXPECT_EQ(numArrived_, sent_.size()) << "round " << round;
    EXPECT_FALSE(isLost_);
    feed(random.spoil(stream), random);
    EXPECT_TRUE(!isLost_ || cause_ == transport::LossCause::kCorrupted) << "round " << round;
  }
}

TEST_P(StreamFuzz, RandomBytesEndTheConnection) {
  RandomBytes random;
  SCOPED_TRACE("seed " + std::to_string(random.seed()));
  sent_.clear();
  for (int round = 0; round < 150 && !HasFailure(); ++round) {
    feed(random.bytes(200 + random.below(10000)), random);
    EXPECT_TRUE(isLost_);
  }
}

TEST_P(StreamFuzz, SealedNonsenseAllocatesLittle) {
  RandomBytes random;
  SCOPED_TRACE("seed " + std::to_string(random.seed()));
  const CountedMemory memory;
  for (int round = 0; round < 150 && !HasFailure(); ++round) {
    security::Sealer sealer(GetParam(), key_);
    Bytes stream;
    wire::FrameHeader header;
    header.kind = wire::FrameKind::kData;
    header.length =
        static_cast<uint32_t>(wire::kMaxPayloadBytes + 1 + random.below(UINT32_MAX - wire::kMaxPayloadBytes));
    header.total = header.length + random.below(1000);
    append(stream, sealer, header, {});
    sent_.clear();
    feed(stream, random);
    EXPECT_TRUE(isLost_) << "length " << header.length;
  }
  EXPECT_LT(memory.peakBytes(), kMaxUnauthenticatedBytes);
}

INSTANTIATE_TEST_SUITE_P(Modes, StreamFuzz,
                         testing::Values(security::Protection::kIntegrity, security::Protection::kAuthenticated,
                                         security::Protection::kEncrypted),
                         [](const auto& info) { return std::string(toString(info.param)); });

}  // namespace
}  // namespace agspeed::comm::tcp
