// SPDX-License-Identifier: Apache-2.0
// Messengers of one host that share memory, in one process: the path that each message takes, and the end of a rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "comm/transport/shm/local_socket.h"
#include "tests/comm/network/network_group.h"

namespace agspeed::comm::network {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

void shareMemory(NetworkOptions& options) { options.sharesMemory = true; }

uint64_t freshSeed() { return std::random_device()(); }

uint64_t numNetworkFrames(NetworkGroup& group, int rank) {
  uint64_t sum = 0;
  for (const multirail::MultirailCounters::Rail& rail : group[rank].counters().rails) sum += rail.numFrames;
  return sum;
}

TEST(SharingMemory, NothingTakesTheNetworkAndNoAwakeRankIsWoken) {
  const uint64_t seed = freshSeed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  NetworkGroup group(4, 2, shareMemory);
  EXPECT_EQ(group.exchange(300, 1 << 20, seed), "");
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(numNetworkFrames(group, rank), 0u);
    EXPECT_EQ(group[rank].sharedMemoryCounters()->numRings, 0u);
    EXPECT_GT(group[rank].sharedMemoryCounters()->numReadBytes, 0u);
  }
  const uint64_t before = group[0].sharedMemoryCounters()->numBytes;
  Parcel send(1, {9, 9, 9}, 1 << 20), receive(0, {9, 9, 9}, 1 << 20);
  group[1].receive(receive);
  group[0].send(send);
  ASSERT_TRUE(group.drive([&] { return send.numFinished > 0 && receive.numFinished > 0; }));
  EXPECT_EQ(group[0].sharedMemoryCounters()->numBytes - before, send.bytes.size());
}

TEST(SharingMemory, ARankThatDoesNotShareIsReachedOverTheNetwork) {
  const uint64_t seed = freshSeed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  NetworkGroup group(3, 1, [](NetworkOptions& options) { options.sharesMemory = options.rank != 1; });
  EXPECT_EQ(group.exchange(100, 1 << 18, seed), "");
  EXPECT_EQ(group[1].sharedMemoryCounters(), nullptr);
  EXPECT_GT(group[0].sharedMemoryCounters()->numFrames, 0u);
  EXPECT_GT(numNetworkFrames(group, 0), 0u);
  EXPECT_THAT(group[0].describe(), HasSubstr("shared memory on this host"));
}

TEST(SharingMemory, ARankThatIsStoppedBeforeTheHandshakeIsGivenUp) {
  NetworkGroup group(2, 1, [](NetworkOptions& options) {
    options.sharesMemory = true;
    options.peerTimeout = milliseconds(300);
  });
  Parcel receive(1, {5, 5, 5}, 100);
  group[0].receive(receive);
  const io::Clock::time_point end = io::Clock::now() + std::chrono::seconds(20);
  while (receive.numFinished == 0 && io::Clock::now() < end) group[0].progress(io::Clock::now() + milliseconds(20));
  EXPECT_EQ(receive.status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(receive.status.message(), HasSubstr("rank 1"));
  EXPECT_THAT(receive.status.message(), HasSubstr("handshake"));
}

TEST(SharingMemory, ARankStoppedDuringTheHandshakeGoesOn) {
  NetworkGroup group(2, 1, [](NetworkOptions& options) {
    options.sharesMemory = true;
    options.peerTimeout = milliseconds(1000);
  });
  Parcel send(0, {5, 5, 5}, 100), receive(1, {5, 5, 5}, 100);
  group[0].receive(receive);
  const io::Clock::time_point connected =
      io::Clock::now() + milliseconds(200);  // then it is connected and has no answer
  while (io::Clock::now() < connected) group[0].progress(connected);
  std::this_thread::sleep_for(milliseconds(1500));
  group[1].send(send);
  ASSERT_TRUE(group.drive([&] { return receive.numFinished > 0; }));
  EXPECT_TRUE(receive.status.isOk()) << receive.status.message();
  EXPECT_EQ(numNetworkFrames(group, 1), 0u);
}

TEST(SharingMemory, ARankThatIsStoppedLaterIsGivenUpThoughMessagesAreSentToIt) {
  NetworkGroup group(2, 1, [](NetworkOptions& options) {
    options.sharesMemory = true;
    options.peerTimeout = milliseconds(600);
  });
  ASSERT_EQ(group.exchange(10, 1000, freshSeed()), "");
  Parcel receive(1, {5, 5, 5}, 100);
  group[0].receive(receive);
  const io::Clock::time_point end = io::Clock::now() + std::chrono::seconds(20);
  std::vector<std::unique_ptr<Parcel>> sends;
  while (receive.numFinished == 0 && io::Clock::now() < end) {
    sends.push_back(std::make_unique<Parcel>(1, wire::MessageId{6, 6, sends.size()}, 10));
    group[0].send(*sends.back());
    group[0].progress(io::Clock::now() + milliseconds(50));
  }
  EXPECT_EQ(receive.status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(receive.status.message(), HasSubstr("shared memory"));
}

TEST(LocalSocket, ANameWithoutAListenerIsOfAnotherHost) {
  security::KeyPair::PublicKey key{};
  const std::string name = shm::localName(key);
  EXPECT_EQ(shm::connectTo(name).status().code(), StatusCode::kUnsupported);
  const auto listener = shm::listenAt(name);
  ASSERT_TRUE(listener.hasValue());
  const auto client = shm::connectTo(name);
  ASSERT_TRUE(client.hasValue());
  EXPECT_TRUE(shm::trustedProcessAt(*client));
  EXPECT_FALSE(shm::listenAt(name).hasValue()) << "a name belongs to one";
  key[0] = std::byte{1};
  EXPECT_NE(shm::localName(key), name);
}

}  // namespace
}  // namespace agspeed::comm::network
