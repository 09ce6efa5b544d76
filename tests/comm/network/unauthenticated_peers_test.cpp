// SPDX-License-Identifier: Apache-2.0
// Unauthenticated peers connect to a rail's listener. None is accepted, none costs much, and real peers are unaffected.
#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <random>

#include <gtest/gtest.h>

#include "comm/transport/tcp/socket.h"
#include "comm/wire/handshake.h"
#include "tests/comm/network/network_group.h"

namespace agspeed::comm::network {
namespace {

using std::chrono::milliseconds;

/// A connection without any proof of the key.
class UnauthenticatedPeer {
 public:
  explicit UnauthenticatedPeer(const rendezvous::RailAddress& rail)
      : descriptor_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(rail.port);
    std::memcpy(&address.sin_addr, rail.address.bytes.data(), 4);
    EXPECT_EQ(connect(descriptor_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0) << std::strerror(errno);
  }
  ~UnauthenticatedPeer() { close(descriptor_); }
  UnauthenticatedPeer(const UnauthenticatedPeer&) = delete;

  void say(ByteView bytes) const { (void)!::send(descriptor_, bytes.data(), bytes.size(), MSG_NOSIGNAL); }
  /// True if the other end has closed the connection. A read shows this, because the other end never sends first.
  bool isClosed() const {
    char byte = 0;
    const ssize_t size = recv(descriptor_, &byte, 1, MSG_DONTWAIT);
    EXPECT_LE(size, 0);
    return size == 0 || (size < 0 && errno != EAGAIN);
  }

 private:
  int descriptor_;
};

size_t countDescriptors() {
  size_t count = 0;
  DIR* folder = opendir("/proc/self/fd");
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count;
}

class UnauthenticatedPeers : public testing::Test {
 protected:
  UnauthenticatedPeers() { EXPECT_EQ(group_.exchange(10, 1000, 1), ""); }

  const rendezvous::RailAddress& target() { return group_[0].rails().front(); }
  bool isRefused(const UnauthenticatedPeer& peer) {
    return group_.drive([&] { return peer.isClosed(); }, milliseconds(5000));
  }

  NetworkGroup group_{2, 1};
};

TEST_F(UnauthenticatedPeers, ThatSpeakAnotherProtocolAreRefusedAtOnce) {
  using namespace std::string_view_literals;
  for (const std::string_view text :
       {"GET / HTTP/1.1\r\n\r\n"sv, "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"sv, "SSH-2.0-probe\r\n"sv}) {
    const UnauthenticatedPeer peer(target());
    peer.say(security::bytesOf(text));
    EXPECT_TRUE(isRefused(peer)) << text;
  }
  EXPECT_EQ(group_.exchange(10, 100000, 2), "");
}

TEST_F(UnauthenticatedPeers, ThatSendNothingAreRefusedAfterAWhile) {
  const UnauthenticatedPeer peer(target());
  EXPECT_TRUE(isRefused(peer));
}

TEST_F(UnauthenticatedPeers, ThatClaimToBePeersWithoutTheSecretAreRefused) {
  const security::Digest guess = {};
  for (const uint32_t from : {0u, 1u, 2u, UINT32_MAX}) {
    const UnauthenticatedPeer peer(target());
    peer.say(wire::Initiator({security::Protection::kAuthenticated, 0, from, 0}, guess).request());
    EXPECT_TRUE(isRefused(peer)) << "claims to be rank " << from;
  }
  EXPECT_EQ(group_.exchange(10, 100000, 3), "");
}

TEST_F(UnauthenticatedPeers, InAFloodHoldFewDescriptorsAndStopNoMessage) {
  std::mt19937 random(5);
  const size_t before = countDescriptors();
  const uint64_t refusedBefore = group_[0].numRefused();
  for (int round = 0; round < 20; ++round) {
    std::vector<std::unique_ptr<UnauthenticatedPeer>> peers;
    for (int i = 0; i < 50; ++i) {
      peers.push_back(std::make_unique<UnauthenticatedPeer>(target()));
      std::vector<std::byte> garbage(random() % 200);
      for (std::byte& byte : garbage) byte = std::byte(random());
      if (i % 5 != 0) peers.back()->say(garbage);
      group_[0].progress({});
    }
    ASSERT_EQ(group_.exchange(5, 20000, static_cast<uint64_t>(round)), "");
    peers.clear();
    group_[0].progress({});
    ASSERT_LE(countDescriptors(), before + 80) << "round " << round;
  }
  EXPECT_GT(group_[0].numRefused(), refusedBefore + 500);
}

TEST(Crowd, OfUnauthenticatedPeersFindsNoMorePlacesOnManyRailsThanOnOne) {
  constexpr size_t kPlaces = 64, kPeersPerRail = 20;
  NetworkGroup group(2, 16);
  const size_t before = countDescriptors();
  std::vector<std::unique_ptr<UnauthenticatedPeer>> peers;
  for (const rendezvous::RailAddress& rail : group[0].rails()) {
    for (size_t i = 0; i < kPeersPerRail; ++i) peers.push_back(std::make_unique<UnauthenticatedPeer>(rail));
  }
  for (int turn = 0; turn < 20; ++turn) group[0].progress({});
  EXPECT_LE(countDescriptors(), before + peers.size() + kPlaces);
}

TEST(Crowd, OfRanksThatAllComeAtOnceIsServed) {
  NetworkGroup group(100, 1);
  std::vector<std::unique_ptr<Parcel>> sends;
  std::vector<std::unique_ptr<Parcel>> receives;
  const auto progressAllBut0 = [&] {
    for (int rank = 1; rank < group.size(); ++rank) group[rank].progress({});
  };
  for (int rank = 1; rank < group.size(); ++rank) {
    sends.push_back(std::make_unique<Parcel>(0, wire::MessageId{1, 2, 3}, 100));
    receives.push_back(std::make_unique<Parcel>(rank, wire::MessageId{1, 2, 3}, 100));
    group[rank].send(*sends.back());
    group[0].receive(*receives.back());
  }
  // First all other ranks connect. Then rank 0 polls all connections. Only then the other ranks continue.
  for (int turn = 0; turn < 20; ++turn) progressAllBut0();
  for (int turn = 0; turn < 20; ++turn) group[0].progress({});
  const auto hasArrived = [](const auto& parcel) { return parcel->numFinished == 1 && parcel->status.isOk(); };
  EXPECT_TRUE(group.drive([&] { return std::all_of(receives.begin(), receives.end(), hasArrived); }));
  EXPECT_EQ(group[0].numRefused(), 0u);
}

/// Rank 0, which waits for all others. The test simulates the others.
class CrowdOfPeersThatDoNotAnswer : public testing::Test {
 protected:
  static constexpr int kSize = 25, kAtATime = 8;

  /// Publishes an address as if the rank listened there.
  void publish(int rank, const rendezvous::RailAddress& address) {
    rendezvous::DirectoryOptions peer;
    peer.rank = rank;
    peer.size = kSize;
    ASSERT_TRUE(rendezvous::Directory(store_, peer).publish({address}).isOk());
    receives_.push_back(std::make_unique<Parcel>(rank, wire::MessageId{1, 2, 3}, 100));
    messenger_->receive(*receives_.back());
  }
  void drive(milliseconds time) {
    const io::Clock::time_point end = io::Clock::now() + time;
    while (io::Clock::now() < end) messenger_->progress(io::Clock::now() + milliseconds(5));
  }

  rendezvous::MemoryStore store_;
  std::vector<std::unique_ptr<Parcel>> receives_;
  std::unique_ptr<NetworkMessenger> messenger_ = NetworkMessenger::create(store_, loopbackOptions(0, kSize, 1)).value();
  rendezvous::RailAddress address_ = {*topology::parseIpAddress("127.0.0.1"), 8, 0};
  tcp::Socket listener_ = tcp::Socket::listen(address_).value();
};

TEST_F(CrowdOfPeersThatDoNotAnswer, IsConnectedToAFewAtATime) {
  for (int rank = 1; rank < kSize; ++rank) publish(rank, address_);
  drive(milliseconds(500));
  int numConnected = 0;
  while (listener_.accept()) ++numConnected;
  EXPECT_EQ(numConnected, kAtATime);
}

TEST_F(CrowdOfPeersThatDoNotAnswer, DelaysNoOtherConnection) {
  // The first peers are retried before the last ones get their first attempt. If retries came first, the last ones
  // would never get one.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  rendezvous::RailAddress addressOfLast = {address_.address, 8, 0};
  const tcp::Socket listenerOfLast = tcp::Socket::listen(addressOfLast).value();
  for (int rank = 1; rank < kSize; ++rank) publish(rank, rank <= 2 * kAtATime ? address_ : addressOfLast);
  bool isAccepted = false;
  while (!isAccepted && std::chrono::steady_clock::now() < deadline) {
    drive(milliseconds(100));
    while (listener_.accept()) continue;  // accept all connections and close them at once
    isAccepted = listenerOfLast.accept().has_value();
  }
  EXPECT_TRUE(isAccepted);
}

}  // namespace
}  // namespace agspeed::comm::network
