// SPDX-License-Identifier: Apache-2.0
// Random and corrupted handshakes at a rail's acceptor. It accepts only an intact one, and no other costs much.
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/transport/tcp/acceptor.h"
#include "tests/fuzz/counted_memory.h"
#include "tests/fuzz/random_bytes.h"

namespace agspeed::comm::tcp {
namespace {

using testing::HasSubstr;

/// Refusals are logged at level info only, and the level is read once.
const bool kIsInfoLogged = setenv("AGSPEED_DEBUG", "info", 1) == 0;

/// An acceptor of rank 0, and the keys of rank 1.
class HandshakeFuzz : public testing::Test, public Acceptor::Owner {
 protected:
  HandshakeFuzz() {
    rendezvous::RailAddress address{*topology::parseIpAddress("127.0.0.1"), 8, 0};
    acceptor_ = std::make_unique<Acceptor>(poller_, Socket::listen(address).value(), 1, self_, *this);
    port_ = address.port;
    EXPECT_TRUE(self_.publish({address}).isOk() && other_.publish({address}).isOk());
    const rendezvous::Peer* peer = nullptr;
    while (peer == nullptr) peer = *other_.find(0, io::Clock::now());
    secret_ = peer->secret;
  }

  static rendezvous::DirectoryOptions optionsOf(int rank) {
    rendezvous::DirectoryOptions options;
    options.rank = rank;
    options.size = 2;
    return options;
  }
  void accepted(int peer, Socket, security::Opener) override { EXPECT_EQ(++numAccepted_, 1) << "rank " << peer; }

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
    acceptor_->expire(io::Clock::now());
  }
  void say(int descriptor, ByteView bytes, size_t chunk) {
    for (size_t at = 0; at < bytes.size(); at += chunk) {
      const ByteView part = bytes.subspan(at, std::min(chunk, bytes.size() - at));
      if (::send(descriptor, part.data(), part.size(), MSG_NOSIGNAL) < 0) return;
      drive();
    }
  }
  /// Waits for the reply. Returns "" if the connection was refused.
  Bytes hear(int descriptor) {
    Bytes reply(wire::kReplyBytes);
    const io::Clock::time_point limit = io::Clock::now() + std::chrono::seconds(10);
    while (io::Clock::now() < limit) {
      drive();
      const ssize_t size = recv(descriptor, reply.data(), reply.size(), MSG_DONTWAIT);
      if (size == static_cast<ssize_t>(reply.size())) return reply;
      if (size >= 0 || errno != EAGAIN) break;
    }
    return {};
  }
  /// Does the handshake of rank 1, with corrupted parts as asked.
  void shakeHands(RandomBytes& random, bool isRequestSpoiled, bool isConfirmSpoiled) {
    const int descriptor = connectTo();
    const wire::Initiator initiator({security::Protection::kAuthenticated, 0, 1, 0}, secret_);
    Bytes request(initiator.request().begin(), initiator.request().end());
    if (isRequestSpoiled) request = random.spoil(request);
    say(descriptor, request, 1 + random.below(request.size()));
    if (!isRequestSpoiled) {
      const Bytes reply = hear(descriptor);
      ASSERT_EQ(reply.size(), wire::kReplyBytes);
      const auto confirmed =
          initiator.confirm(std::span<const std::byte, wire::kReplyBytes>(reply.data(), wire::kReplyBytes));
      ASSERT_TRUE(confirmed);
      Bytes confirm(confirmed->begin(), confirmed->end());
      if (isConfirmSpoiled) confirm[random.below(confirm.size())] ^= std::byte{4};
      say(descriptor, confirm, 1 + random.below(confirm.size()));
      drive();
    }
    close(descriptor);
    drive();
  }

  rendezvous::MemoryStore store_;
  rendezvous::Directory self_{store_, optionsOf(0)};
  rendezvous::Directory other_{store_, optionsOf(1)};
  security::Digest secret_{};
  io::Poller poller_;
  std::unique_ptr<Acceptor> acceptor_;
  uint16_t port_ = 0;
  int numAccepted_ = 0;
};

TEST_F(HandshakeFuzz, OnlyAnIntactHandshakeIsAcceptedAndNothingElseCostsMemory) {
  RandomBytes random;
  SCOPED_TRACE("seed " + std::to_string(random.seed()));
  const CountedMemory memory;
  testing::internal::CaptureStderr();
  for (int round = 0; round < 600; ++round) {
    if (round % 3 == 0) {
      const int descriptor = connectTo();
      const Bytes garbage = random.bytes(random.below(3000));
      say(descriptor, garbage, 1 + random.below(400));
      close(descriptor);
      drive();
    } else {
      shakeHands(random, round % 3 == 1, true);
    }
    ASSERT_EQ(numAccepted_, 0) << "round " << round;
  }
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_LT(memory.peakBytes(), kMaxUnauthenticatedBytes);
  EXPECT_GE(acceptor_->numRefused(), 550u);
  EXPECT_LE(std::count(log.begin(), log.end(), '\n'), 12) << log;
  EXPECT_THAT(log, HasSubstr("(512 so far)"));
  shakeHands(random, false, false);
  EXPECT_EQ(numAccepted_, 1);
}

}  // namespace
}  // namespace agspeed::comm::tcp
