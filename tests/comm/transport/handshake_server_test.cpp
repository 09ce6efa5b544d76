// SPDX-License-Identifier: Apache-2.0
// The cost of unauthenticated peers, and which peers are accepted. There are no sockets: the test sets each
// connection's bytes.
#include "comm/transport/handshake_server.h"

#include <algorithm>
#include <deque>
#include <vector>

#include <gtest/gtest.h>

namespace agspeed::comm::transport {
namespace {

using std::chrono::milliseconds;

/// The peer's end of a connection. It outlives the server's end.
struct FakeWire {
  std::deque<std::byte> incoming;  ///< bytes that the server has not read
  bool isClosed = false;           ///< the peer has closed the connection
  bool takesReply = true;
  Status acceptStatus;  ///< the result of accepting the connection
  std::optional<wire::ReplyBytes> reply;
  int acceptedFrom = -1;
  bool isGone = false;  ///< the server's end was destroyed
};

class FakeConnection final : public HandshakeServer::Connection {
 public:
  explicit FakeConnection(FakeWire& wire) : wire_(wire) {}
  ~FakeConnection() override { wire_.isGone = true; }

  std::optional<size_t> read(std::span<std::byte> target) override {
    if (wire_.isClosed || (target.empty() && !wire_.incoming.empty())) return std::nullopt;
    const size_t size = std::min(target.size(), wire_.incoming.size());
    std::copy_n(wire_.incoming.begin(), size, target.begin());
    wire_.incoming.erase(wire_.incoming.begin(), wire_.incoming.begin() + static_cast<ptrdiff_t>(size));
    return size;
  }
  bool reply(const wire::ReplyBytes& reply) override {
    wire_.reply = reply;
    return wire_.takesReply;
  }
  Status accept(int peer, const wire::Responder&) override {
    wire_.acceptedFrom = peer;
    return wire_.acceptStatus;
  }

 private:
  FakeWire& wire_;
};

/// The server of rank 0, and the data that rank 1 knows.
class HandshakeServerTest : public testing::Test {
 protected:
  HandshakeServerTest() { EXPECT_TRUE(self_.publish({}).isOk()); }

  static rendezvous::DirectoryOptions optionsOf(int rank) {
    rendezvous::DirectoryOptions options;
    options.rank = rank;
    options.size = 2;
    return options;
  }
  static wire::Claim claimOf(uint32_t from) { return {security::Protection::kAuthenticated, 0, from, 0}; }

  /// Publishes the record of rank 1, and returns the request of rank 1.
  wire::Initiator join() {
    EXPECT_TRUE(other_.publish({}).isOk());
    return initiate();
  }
  wire::Initiator initiate() {
    const rendezvous::Peer* peer = nullptr;
    while (peer == nullptr) peer = *other_.find(0, io::Clock::now());
    return wire::Initiator(claimOf(1), peer->secret);
  }
  HandshakeServer::Connection& connect(FakeWire& wire) {
    auto connection = std::make_unique<FakeConnection>(wire);
    HandshakeServer::Connection& result = *connection;
    server_.add(std::move(connection));
    return result;
  }
  /// Sends the bytes in pieces of `chunk` bytes. Lets the server read after each piece, as long as the connection
  /// exists.
  void say(FakeWire& wire, HandshakeServer::Connection& connection, std::span<const std::byte> bytes, size_t chunk) {
    for (size_t at = 0; at < bytes.size() && !wire.isGone; at += chunk) {
      const auto part = bytes.subspan(at, std::min(chunk, bytes.size() - at));
      wire.incoming.insert(wire.incoming.end(), part.begin(), part.end());
      server_.read(connection);
    }
  }
  /// Waits until the server has answered a request or refused it. The store may take a moment to look up the peer.
  void settle(const FakeWire& wire) {
    const io::Clock::time_point limit = io::Clock::now() + std::chrono::seconds(60);
    while (!wire.reply && !wire.isGone && io::Clock::now() < limit) server_.expire(start_);
  }
  /// Lets time pass and calls the server every 40 ms.
  void spend(io::Clock::duration duration) {
    for (const io::Clock::time_point end = now_ + duration; now_ < end;) server_.expire(now_ += milliseconds(40));
  }

  std::deque<FakeWire> wires_;
  rendezvous::MemoryStore store_;
  rendezvous::Directory self_{store_, optionsOf(0)};
  rendezvous::Directory other_{store_, optionsOf(1)};
  rendezvous::PendingLimits limits_ = HandshakeServer::networkLimits(1, 2);
  HandshakeServer server_{limits_, self_, "a connection"};
  const io::Clock::time_point start_ = io::Clock::now();
  io::Clock::time_point now_ = start_;
};

TEST_F(HandshakeServerTest, APeerIsAcceptedHoweverItsBytesCome) {
  const wire::Initiator initiator = join();
  for (const size_t chunk : {size_t{1}, size_t{7}, wire::kRequestBytes}) {
    FakeWire& wire = wires_.emplace_back();
    HandshakeServer::Connection& connection = connect(wire);
    say(wire, connection, initiator.request(), chunk);
    settle(wire);
    ASSERT_TRUE(wire.reply) << "chunks of " << chunk;
    const std::optional<wire::ConfirmBytes> confirm = initiator.confirm(*wire.reply);
    ASSERT_TRUE(confirm);
    EXPECT_EQ(wire.acceptedFrom, -1) << "it has proven nothing yet";
    say(wire, connection, *confirm, chunk);
    EXPECT_EQ(wire.acceptedFrom, 1);
    EXPECT_TRUE(wire.isGone);
  }
  EXPECT_EQ(server_.numPending(), 0u);
  EXPECT_EQ(server_.numRefused(), 0u);
}

TEST_F(HandshakeServerTest, AnotherProtocolIsRefusedAtItsFirstBytes) {
  FakeWire& wire = wires_.emplace_back();
  HandshakeServer::Connection& connection = connect(wire);
  say(wire, connection, security::bytesOf("GET / HTTP/1.1\r\n"), 1);
  EXPECT_TRUE(wire.isGone);
  EXPECT_TRUE(wire.incoming.empty());
  EXPECT_EQ(server_.numRefused(), 1u);
}

TEST_F(HandshakeServerTest, APeerWithoutTheSecretIsRefused) {
  (void)join();
  for (const uint32_t from : {0u, 1u, 2u, UINT32_MAX}) {
    FakeWire& wire = wires_.emplace_back();
    HandshakeServer::Connection& connection = connect(wire);
    say(wire, connection, wire::Initiator(claimOf(from), security::Digest{}).request(), wire::kRequestBytes);
    settle(wire);
    EXPECT_TRUE(wire.isGone && !wire.reply) << "claims to be rank " << from;
  }
}

TEST_F(HandshakeServerTest, AWrongConfirmationIsRefused) {
  const wire::Initiator initiator = join();
  FakeWire& wire = wires_.emplace_back();
  HandshakeServer::Connection& connection = connect(wire);
  say(wire, connection, initiator.request(), wire::kRequestBytes);
  settle(wire);
  ASSERT_TRUE(wire.reply);
  say(wire, connection, wire::ConfirmBytes{}, wire::kConfirmBytes);
  EXPECT_TRUE(wire.isGone);
  EXPECT_EQ(wire.acceptedFrom, -1);
}

TEST_F(HandshakeServerTest, NothingFollowsARequestBeforeItIsAnswered) {
  const wire::Initiator initiator = initiate();  // rank 1 has not published its record in the store
  FakeWire& wire = wires_.emplace_back();
  HandshakeServer::Connection& connection = connect(wire);
  say(wire, connection, initiator.request(), wire::kRequestBytes);
  server_.read(connection);
  EXPECT_FALSE(wire.isGone) << "nothing has come";
  say(wire, connection, wire::ConfirmBytes{}, 1);
  EXPECT_TRUE(wire.isGone);
}

TEST_F(HandshakeServerTest, APeerThatIsNotKnownYetIsAnsweredOnceItIs) {
  const wire::Initiator initiator = initiate();
  FakeWire& wire = wires_.emplace_back();
  say(wire, connect(wire), initiator.request(), wire::kRequestBytes);
  EXPECT_FALSE(wire.reply);
  EXPECT_LE(server_.expire(start_), start_ + milliseconds(250)) << "it wants to try again soon";
  EXPECT_TRUE(other_.publish({}).isOk());
  settle(wire);
  ASSERT_TRUE(wire.reply);
  EXPECT_TRUE(initiator.confirm(*wire.reply));
}

TEST_F(HandshakeServerTest, AClosedConnectionAndOneThatTakesNoReplyAreRefused) {
  const wire::Initiator initiator = join();
  FakeWire& closed = wires_.emplace_back();
  FakeWire& full = wires_.emplace_back();
  HandshakeServer::Connection& first = connect(closed);
  closed.isClosed = true;
  server_.read(first);
  EXPECT_TRUE(closed.isGone);
  full.takesReply = false;
  say(full, connect(full), initiator.request(), wire::kRequestBytes);
  settle(full);
  EXPECT_TRUE(full.isGone);
  EXPECT_EQ(server_.numRefused(), 2u);
}

TEST_F(HandshakeServerTest, WhatCannotBeHandedOnCountsAsRefused) {
  const wire::Initiator initiator = join();
  FakeWire& wire = wires_.emplace_back();
  wire.acceptStatus = unavailable("its memory is not sealed");
  HandshakeServer::Connection& connection = connect(wire);
  say(wire, connection, initiator.request(), wire::kRequestBytes);
  settle(wire);
  ASSERT_TRUE(wire.reply);
  say(wire, connection, *initiator.confirm(*wire.reply), wire::kConfirmBytes);
  EXPECT_TRUE(wire.isGone);
  EXPECT_EQ(server_.numRefused(), 1u);
  EXPECT_EQ(server_.numPending(), 0u);
}

TEST_F(HandshakeServerTest, AFloodFindsNoMoreThanItsPlaces) {
  for (size_t i = 0; i < 3 * limits_.numConnections; ++i) {
    connect(wires_.emplace_back());
    ASSERT_LE(server_.numPending(), limits_.numConnections);
  }
  const auto numGone = std::count_if(wires_.begin(), wires_.end(), [](const FakeWire& wire) { return wire.isGone; });
  EXPECT_EQ(static_cast<size_t>(numGone), 2 * limits_.numConnections);
  EXPECT_TRUE(wires_.front().isGone && !wires_.back().isGone) << "the oldest make room";
  EXPECT_EQ(server_.numRefused(), 2 * limits_.numConnections);
}

TEST_F(HandshakeServerTest, TheSlowAreRefusedAtTheirDeadlineByteByByteOrSilent) {
  const wire::Initiator initiator = join();
  FakeWire& silent = wires_.emplace_back();
  FakeWire& slow = wires_.emplace_back();
  connect(silent);
  HandshakeServer::Connection& connection = connect(slow);
  for (size_t i = 0; i < 10; ++i) {
    say(slow, connection, std::span(initiator.request()).subspan(i, 1), 1);
    spend(limits_.deadline / 20);
  }
  EXPECT_FALSE(silent.isGone || slow.isGone) << "half of their time has passed";
  spend(limits_.deadline);
  EXPECT_TRUE(silent.isGone && slow.isGone);
  EXPECT_EQ(server_.expire(now_), io::Clock::time_point::max()) << "no handshake is pending";
}

TEST_F(HandshakeServerTest, TimeInWhichThisProcessDidNotLookDoesNotCount) {
  FakeWire& wire = wires_.emplace_back();
  connect(wire);
  spend(limits_.deadline / 2);
  now_ += std::chrono::hours(1);  // as if the process had been stopped
  spend(limits_.deadline / 4);
  EXPECT_FALSE(wire.isGone);
  spend(limits_.deadline);
  EXPECT_TRUE(wire.isGone);
}

TEST(HandshakeLimits, GiveEachRankAPlaceAndOthersAFew) {
  EXPECT_EQ(HandshakeServer::networkLimits(1, 2).numConnections, 64u);
  EXPECT_EQ(HandshakeServer::networkLimits(16, 2).numConnections, 4u) << "64 on all rails together";
  EXPECT_EQ(HandshakeServer::networkLimits(64, 2).numConnections, 4u);
  EXPECT_EQ(HandshakeServer::networkLimits(2, 100).numConnections, 100u);
  EXPECT_EQ(HandshakeServer::localLimits(8).numConnections, 72u);
}

}  // namespace
}  // namespace agspeed::comm::transport
