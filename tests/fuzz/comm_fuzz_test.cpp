// SPDX-License-Identifier: Apache-2.0
// Random and spoiled bytes against everything that reads from the network: the acceptor, the reader, and the messenger
// behind them. Whatever comes, only intact frames get through, and strangers allocate next to nothing.
#include <malloc.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/messaging/transport_messenger.h"
#include "comm/transport/tcp/acceptor.h"
#include "comm/transport/tcp/receiver.h"
#include "tests/comm/transport/fake_rail.h"

namespace {

std::atomic<int64_t> liveBytes = 0;
std::atomic<int64_t> peakBytes = 0;

void* counted(void* block) {
  if (block == nullptr) throw std::bad_alloc();
  const int64_t live = liveBytes += static_cast<int64_t>(malloc_usable_size(block));
  int64_t peak = peakBytes;
  while (live > peak && !peakBytes.compare_exchange_weak(peak, live)) {
  }
  return block;
}

}  // namespace

void* operator new(size_t size) { return counted(std::malloc(std::max<size_t>(size, 1))); }
void operator delete(void* block) noexcept {
  if (block != nullptr) liveBytes -= static_cast<int64_t>(malloc_usable_size(block));
  std::free(block);
}
void operator delete(void* block, size_t) noexcept { operator delete(block); }

namespace agspeed::comm::tcp {
namespace {

using Bytes = std::vector<std::byte>;
using testing::HasSubstr;

constexpr int64_t kMaxStrangerBytes = int64_t{16} << 20;

/// The log says what is refused only at level info; knobs are read once.
const bool kIsInfoLogged = setenv("AGSPEED_DEBUG", "info", 1) == 0;

class Random {
 public:
  Random() : seed_(std::random_device()()), engine_(seed_) {}

  uint64_t seed() const { return seed_; }
  uint64_t below(uint64_t limit) { return engine_() % limit; }
  Bytes bytes(size_t size) {
    Bytes result(size);
    for (std::byte& byte : result) byte = std::byte(engine_());
    return result;
  }
  /// Changed in one of the ways in which bytes go wrong; never the same as before.
  Bytes spoil(Bytes bytes) {
    const Bytes before = bytes;
    const size_t at = below(bytes.size()), count = 1 + below(std::min<size_t>(bytes.size() - at, 40));
    const auto begin = bytes.begin() + static_cast<ptrdiff_t>(at), end = begin + static_cast<ptrdiff_t>(count);
    switch (below(5)) {
      case 0: *begin ^= std::byte(1 << below(8)); break;
      case 1: std::generate(begin, end, [&] { return std::byte(engine_()); }); break;
      case 2: bytes.erase(begin, end); break;
      case 3: {
        const Bytes copy(begin, end);
        bytes.insert(begin, copy.begin(), copy.end());
        break;
      }
      default: std::fill(begin, end, std::byte{0xff}); break;
    }
    if (bytes == before) bytes[0] ^= std::byte{1};
    return bytes;
  }

 private:
  const uint64_t seed_;
  std::mt19937_64 engine_;
};

// --- the acceptor ---------------------------------------------------------------------------------------------------

/// An acceptor of rank 0, and rank 1's knowledge.
class AcceptorFuzz : public testing::Test, public Acceptor::Owner {
 protected:
  AcceptorFuzz() {
    RailAddress address{*parseIpAddress("127.0.0.1"), 8, 0};
    acceptor_ = std::make_unique<Acceptor>(poller_, Socket::listen(address).value(), 1, self_, *this);
    port_ = address.port;
    EXPECT_TRUE(self_.publish({address}).isOk() && other_.publish({address}).isOk());
    const Peer* peer = nullptr;
    while (peer == nullptr) peer = *other_.find(0, Clock::now());
    secret_ = peer->secret;
  }

  static DirectoryOptions optionsOf(int rank) {
    DirectoryOptions options;
    options.rank = rank;
    options.size = 2;
    return options;
  }
  void accepted(int peer, Socket, Opener) override { EXPECT_EQ(++numAccepted_, 1) << "rank " << peer; }

  int connectTo() const {
    const int descriptor = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(port_);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(descriptor, reinterpret_cast<sockaddr*>(&address), sizeof address), 0) << std::strerror(errno);
    return descriptor;
  }
  void drive() {
    for (int i = 0; i < 3; ++i) poller_.wait({});
    acceptor_->expire(Clock::now());
  }
  void say(int descriptor, ByteView bytes, size_t chunk) {
    for (size_t at = 0; at < bytes.size(); at += chunk) {
      const ByteView part = bytes.subspan(at, std::min(chunk, bytes.size() - at));
      if (::send(descriptor, part.data(), part.size(), MSG_NOSIGNAL) < 0) return;
      drive();
    }
  }
  /// The reply, once it is there; empty when the connection was refused.
  Bytes hear(int descriptor) {
    Bytes reply(kReplyBytes);
    const Clock::time_point limit = Clock::now() + std::chrono::seconds(10);
    while (Clock::now() < limit) {
      drive();
      const ssize_t size = recv(descriptor, reply.data(), reply.size(), MSG_DONTWAIT);
      if (size == static_cast<ssize_t>(reply.size())) return reply;
      if (size >= 0 || errno != EAGAIN) break;
    }
    return {};
  }
  /// Greets as rank 1 does, but for what is spoiled.
  void greet(Random& random, bool isRequestSpoiled, bool isConfirmSpoiled) {
    const int descriptor = connectTo();
    const Initiator initiator({Protection::kAuthenticated, 0, 1, 0}, secret_);
    Bytes request(initiator.request().begin(), initiator.request().end());
    if (isRequestSpoiled) request = random.spoil(request);
    say(descriptor, request, 1 + random.below(request.size()));
    if (!isRequestSpoiled) {
      const Bytes reply = hear(descriptor);
      ASSERT_EQ(reply.size(), kReplyBytes);
      const auto confirmed = initiator.confirm(std::span<const std::byte, kReplyBytes>(reply.data(), kReplyBytes));
      ASSERT_TRUE(confirmed);
      Bytes confirm(confirmed->begin(), confirmed->end());
      if (isConfirmSpoiled) confirm[random.below(confirm.size())] ^= std::byte{4};
      say(descriptor, confirm, 1 + random.below(confirm.size()));
      drive();
    }
    close(descriptor);
    drive();
  }

  MemoryStore store_;
  Directory self_{store_, optionsOf(0)};
  Directory other_{store_, optionsOf(1)};
  Digest secret_{};
  Poller poller_;
  std::unique_ptr<Acceptor> acceptor_;
  uint16_t port_ = 0;
  int numAccepted_ = 0;
};

TEST_F(AcceptorFuzz, OnlyAnIntactGreetingIsAcceptedAndNothingElseCostsMemory) {
  Random random;
  SCOPED_TRACE("seed " + std::to_string(random.seed()));
  peakBytes = liveBytes.load();
  const int64_t before = liveBytes;
  testing::internal::CaptureStderr();
  for (int round = 0; round < 600; ++round) {
    if (round % 3 == 0) {
      const int descriptor = connectTo();
      const Bytes garbage = random.bytes(random.below(3000));
      say(descriptor, garbage, 1 + random.below(400));
      close(descriptor);
      drive();
    } else {
      greet(random, round % 3 == 1, true);
    }
    ASSERT_EQ(numAccepted_, 0) << "round " << round;
  }
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_LT(peakBytes - before, kMaxStrangerBytes);
  EXPECT_GE(acceptor_->numRefused(), 550u);
  EXPECT_LE(std::count(log.begin(), log.end(), '\n'), 12) << log;
  EXPECT_THAT(log, HasSubstr("(512 so far)"));
  greet(random, false, false);
  EXPECT_EQ(numAccepted_, 1);
}

// --- the reader -----------------------------------------------------------------------------------------------------

/// Frames as they were sent, and a sink that compares what arrives with them.
class ReceiverFuzz : public testing::TestWithParam<Protection>, public Transport::Sink, public Receiver::Owner {
 protected:
  struct Sent {
    FrameHeader header;
    Bytes payload;
  };

  std::span<std::byte> place(int, const FrameHeader& header) override {
    memory_.assign(header.length, std::byte{0});
    return header.length % 7 == 3 ? std::span<std::byte>() : std::span(memory_);
  }
  void arrived(int, const FrameHeader& header) override {
    ASSERT_LT(numArrived_, sent_.size());
    const Sent& sent = sent_[numArrived_++];
    EXPECT_EQ(header.number, sent.header.number);
    EXPECT_EQ(header.total, sent.header.total);
    const bool isKept = header.length > 0 && header.length % 7 != 3;
    EXPECT_TRUE(!isKept || memory_ == sent.payload) << header.length << " bytes";
  }
  void acknowledged(int, uint64_t) override {}
  void writable(int) override {}
  void lost(int, LossCause, const Status&) override {}
  void readerLost(int, LossCause cause) override {
    isLost_ = true;
    cause_ = cause;
  }

  /// Some frames, sealed.
  Bytes makeFrames(Random& random) {
    Sealer sealer(GetParam(), key_);
    Bytes stream;
    sent_.clear();
    for (uint64_t number = 1; number <= 1 + random.below(6); ++number) {
      Sent sent;
      sent.header.kind = random.below(2) == 0 ? FrameKind::kData : FrameKind::kCredit;
      sent.header.number = number;
      sent.header.total = random.below(1000);
      if (sent.header.kind == FrameKind::kData) {
        sent.payload = random.bytes(1 + random.below(random.below(8) == 0 ? kMaxPayloadBytes : 3000));
        sent.header.length = static_cast<uint32_t>(sent.payload.size());
        sent.header.total = sent.payload.size();
      }
      append(stream, sealer, sent.header, sent.payload);
      sent_.push_back(std::move(sent));
    }
    return stream;
  }
  static void append(Bytes& stream, Sealer& sealer, const FrameHeader& header, Bytes payload) {
    const size_t tagSize = tagBytes(sealer.protection());
    Bytes prefix(kHeaderBytes + tagSize), tag(tagSize);
    encodeHeader(header, std::span(prefix).first<kHeaderBytes>());
    sealer.sign(std::span(prefix).first(kHeaderBytes), std::span(prefix).subspan(kHeaderBytes));
    stream.insert(stream.end(), prefix.begin(), prefix.end());
    if (payload.empty()) return;
    sealer.protection() == Protection::kEncrypted ? sealer.encrypt(payload, payload, tag) : sealer.sign(payload, tag);
    stream.insert(stream.end(), payload.begin(), payload.end());
    stream.insert(stream.end(), tag.begin(), tag.end());
  }
  /// Lets a reader have the bytes, in pieces.
  void feed(const Bytes& stream, Random& random) {
    int ends[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
    numArrived_ = 0;
    isLost_ = false;
    {
      Poller poller;
      Receiver reader(poller, Socket(ends[0]), Opener(GetParam(), key_), *this, 1, *this);
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

  const SealKey key_{std::byte{9}};
  std::vector<Sent> sent_;
  Bytes memory_;
  size_t numArrived_ = 0;
  bool isLost_ = false;
  LossCause cause_ = LossCause::kClosed;
};

TEST_P(ReceiverFuzz, WhatIsSpoiledNeverArrives) {
  Random random;
  SCOPED_TRACE("seed " + std::to_string(random.seed()));
  for (int round = 0; round < 150 && !HasFailure(); ++round) {
    const Bytes stream = makeFrames(random);
    feed(stream, random);
    EXPECT_EQ(numArrived_, sent_.size()) << "round " << round;
    EXPECT_FALSE(isLost_);
    feed(random.spoil(stream), random);
    EXPECT_TRUE(!isLost_ || cause_ == LossCause::kCorrupted) << "round " << round;
  }
}

TEST_P(ReceiverFuzz, RandomBytesEndTheConnection) {
  Random random;
  SCOPED_TRACE("seed " + std::to_string(random.seed()));
  sent_.clear();
  for (int round = 0; round < 150 && !HasFailure(); ++round) {
    feed(random.bytes(200 + random.below(10000)), random);
    EXPECT_TRUE(isLost_);
  }
}

TEST_P(ReceiverFuzz, SealedNonsenseAllocatesLittle) {
  Random random;
  SCOPED_TRACE("seed " + std::to_string(random.seed()));
  const int64_t before = liveBytes;
  peakBytes = before;
  for (int round = 0; round < 150 && !HasFailure(); ++round) {
    Sealer sealer(GetParam(), key_);
    Bytes stream;
    FrameHeader header;
    header.kind = FrameKind::kData;
    header.length = static_cast<uint32_t>(kMaxPayloadBytes + 1 + random.below(UINT32_MAX - kMaxPayloadBytes));
    header.total = header.length + random.below(1000);
    append(stream, sealer, header, {});
    sent_.clear();
    feed(stream, random);
    EXPECT_TRUE(isLost_) << "length " << header.length;
  }
  EXPECT_LT(peakBytes - before, kMaxStrangerBytes);
}

INSTANTIATE_TEST_SUITE_P(Modes, ReceiverFuzz,
                         testing::Values(Protection::kIntegrity, Protection::kAuthenticated, Protection::kEncrypted),
                         [](const auto& info) { return std::string(toString(info.param)); });

// --- the messenger --------------------------------------------------------------------------------------------------

struct Scrap final : Transfer {
  void finished(const Status&) override { ++numFinished; }

  Bytes storage;
  int numFinished = 0;
};

void talkNonsense(Random& random) {
  Poller poller;
  auto owned = std::make_unique<FakeTransport>();
  owned->can = {.isReliable = true, .isAcknowledging = true, .segmentBytes = 512, .maxPayloadBytes = 4096};
  owned->room = 50;
  FakeTransport& transport = *owned;
  std::vector<std::unique_ptr<Scrap>> scraps;
  {
    TransportMessenger messenger(0, 2, std::move(owned), poller);
    const auto someId = [&] { return MessageId{1, static_cast<uint32_t>(random.below(40)), 1}; };
    const auto someSize = [&] { return random.below(5) == 0 ? 65000 + random.below(2000) : random.below(600); };
    uint64_t used = 0;
    for (int round = 0; round < 400; ++round) {
      switch (random.below(8)) {
        case 0: {
          auto& scrap = scraps.emplace_back(std::make_unique<Scrap>());
          scrap->storage.resize(someSize());
          scrap->bytes = scrap->storage;
          scrap->peer = 1;
          // Names are used once per direction; the nonsense is the peer's.
          const bool isSend = random.below(2) == 0;
          scrap->id = {1, static_cast<uint32_t>(used % 40), 1 + used / 40};
          ++used;
          isSend ? messenger.send(*scrap) : messenger.receive(*scrap);
          break;
        }
        case 1: {
          const auto open = std::find_if(scraps.begin(), scraps.end(), [](auto& each) { return !each->numFinished; });
          if (open != scraps.end()) messenger.cancel(**open, unavailable("enough"));
          break;
        }
        case 2:
          if (transport.sent.empty()) break;
          {
            const uint64_t token = transport.sent.front().token;
            transport.sent.erase(transport.sent.begin());
            ++transport.room;
            transport.sink->acknowledged(1, token);
            transport.sink->writable(1);
          }
          break;
        default: {
          FrameHeader header;
          header.kind = FrameKind(1 + random.below(9));
          header.id = someId();
          header.id.sequence = 1 + random.below(1 + used / 40 + 1);
          header.total = someSize();
          header.consumed = random.below(2) == 0 ? 0 : random.below(100000);
          if ((header.kind == FrameKind::kData || header.kind == FrameKind::kEager) && header.total > 0) {
            header.offset = random.below(header.total);
            header.length = static_cast<uint32_t>(1 + random.below(header.total - header.offset));
            const std::span<std::byte> place = transport.sink->place(1, header);
            ASSERT_TRUE(place.empty() || place.size() == header.length);
            std::fill(place.begin(), place.end(), std::byte{1});
          }
          transport.sink->arrived(1, header);
        }
      }
      if (random.below(4) == 0) messenger.progress({});
    }
    transport.room = 1 << 20;  // so that the messenger need not wait for room when it ends
    transport.sink->writable(1);
  }
  for (const auto& scrap : scraps) EXPECT_LE(scrap->numFinished, 1);
}

TEST(MessengerFuzz, FramesThatMakeNoSenseHarmNobody) {
  Random random;
  SCOPED_TRACE("seed " + std::to_string(random.seed()));
  // Whoever sends more than there is of a message is given up: no messenger listens for long.
  for (int life = 0; life < 100 && !testing::Test::HasFatalFailure(); ++life) talkNonsense(random);
}

}  // namespace
}  // namespace agspeed::comm::tcp
