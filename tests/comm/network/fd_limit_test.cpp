// SPDX-License-Identifier: Apache-2.0
// Acceptors and messengers of a process that has few descriptors left.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/transport/shm/acceptor.h"
#include "comm/transport/tcp/acceptor.h"
#include "tests/comm/io/limited_descriptors.h"
#include "tests/comm/network/network_group.h"

namespace agspeed::comm::network {
namespace {

using std::chrono::milliseconds;
using testing::EndsWith;
using testing::HasSubstr;

/// Counts how often the poller reports an event within 50 ms.
int countWaits(io::Poller& poller) {
  const io::Clock::time_point end = io::Clock::now() + milliseconds(50);
  int numWaits = 0;
  for (; io::Clock::now() < end; ++numWaits) poller.wait(end);
  return numWaits;
}

/// A peer connects while there are no descriptors. Expects at most one attempt per tick, one line of log, and no
/// accepted connection.
template <typename Expire>
void expectFewAttempts(io::Poller& poller, const Expire& expire) {
  testing::internal::CaptureStderr();
  {
    const io::LimitedDescriptors limited(io::nextDescriptor());
    for (int tick = 0; tick < 3; ++tick) {
      EXPECT_LE(countWaits(poller), 3);
      expire();
    }
  }
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("Too many open files"));
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1) << log;
  expire();
  poller.wait(io::Clock::now() + milliseconds(1000));
}

/// Makes a first call, because sanitizers need descriptors to check the first call of a kind of handler.
void checkCalls(io::Poller::Handler& handler) { handler.ready(0); }

class WithoutDescriptors : public testing::Test, public tcp::Acceptor::Owner, public shm::Acceptor::Owner {
 protected:
  void accepted(int, tcp::Socket, security::Opener) override {}
  void accepted(int, shm::AcceptedConnection) override {}

  rendezvous::MemoryStore store_;
  rendezvous::Directory directory_{store_, {}};
  io::Poller poller_;
};

TEST_F(WithoutDescriptors, AnAcceptorWaits) {
  rendezvous::RailAddress address = {*topology::parseIpAddress("127.0.0.1"), 8, 0};
  tcp::Acceptor acceptor(poller_, tcp::Socket::listen(address).value(), 1, directory_, *this);
  EXPECT_EQ(acceptor.expire(io::Clock::now()), io::Clock::time_point::max());
  checkCalls(acceptor);
  const tcp::Socket peer = tcp::Socket::connect(address.address, "", address).value();
  expectFewAttempts(poller_, [&] { acceptor.expire(io::Clock::now()); });
  EXPECT_LT(acceptor.expire(io::Clock::now()), io::Clock::time_point::max()) << "it shakes hands with the peer";
}

TEST_F(WithoutDescriptors, AnAcceptorOfSharedMemoryWaits) {
  const shm::Doorbell bell = shm::Doorbell::create().value();
  const std::string name = shm::localName(directory_.publicKey());
  shm::Acceptor acceptor(poller_, shm::listenAt(name).value(), directory_, bell, *this);
  checkCalls(acceptor);
  const io::FileDescriptor peer = shm::connectTo(name).value();
  expectFewAttempts(poller_, [&] { acceptor.expire(io::Clock::now()); });
  EXPECT_EQ(acceptor.numPending(), 1u);
}

TEST(DescriptorLimit, IsRaisedWhereConnectionsMayNeedMore) {
  constexpr rlim_t kFew = 256, kMany = 10'000;
  if (io::descriptorLimit().rlim_max < kMany)
    GTEST_SKIP() << "this process may open " << io::descriptorLimit().rlim_max << " descriptors";
  const io::LimitedDescriptors limited(kFew);
  rendezvous::MemoryStore store;
  const auto ofTwo = NetworkMessenger::create(store, loopbackOptions(0, 2, 1)).value();
  EXPECT_EQ(io::descriptorLimit().rlim_cur, kFew);
  const auto ofMany = NetworkMessenger::create(store, loopbackOptions(1, 256, 1)).value();
  EXPECT_GE(io::descriptorLimit().rlim_cur, 2u * 255 * 2);
  EXPECT_LT(io::descriptorLimit().rlim_cur, kMany) << "children inherit it";
}

}  // namespace
}  // namespace agspeed::comm::network
