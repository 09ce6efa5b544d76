// SPDX-License-Identifier: Apache-2.0
#include "comm/io/fd_limit.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <optional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/transport/shm/acceptor.h"
#include "tests/comm/network/network_group.h"

namespace agspeed::comm {
namespace {

using std::chrono::milliseconds;
using testing::EndsWith;
using testing::HasSubstr;

rlimit limit() {
  rlimit limit = {};
  EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  return limit;
}

/// While it lives, the process may open descriptors below `most` alone.
class Limited {
 public:
  explicit Limited(rlim_t most) : before_(limit()) {
    const rlimit changed = {most, before_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &changed), 0);
  }
  ~Limited() { EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &before_), 0); }
  Limited(const Limited&) = delete;

 private:
  const rlimit before_;
};

/// The next one to be opened.
rlim_t nextDescriptor() { return static_cast<rlim_t>(FileDescriptor(open("/dev/null", O_RDONLY | O_CLOEXEC)).get()); }

/// How often the poller finds something within a while.
int countWaits(Poller& poller) {
  const Clock::time_point end = Clock::now() + milliseconds(50);
  int numWaits = 0;
  for (; Clock::now() < end; ++numWaits) poller.wait(end);
  return numWaits;
}

/// Somebody connects while there are no descriptors: at most one look, one line of log and no accepted connection for
/// each tick.
template <typename Expire>
void expectPatience(Poller& poller, const Expire& expire) {
  testing::internal::CaptureStderr();
  {
    const Limited limited(nextDescriptor());
    for (int tick = 0; tick < 3; ++tick) {
      EXPECT_LE(countWaits(poller), 3);
      expire();
    }
  }
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("Too many open files"));
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1) << log;
  expire();
  poller.wait(Clock::now() + milliseconds(1000));
}

/// Sanitizers need descriptors to check the first call of a kind of handler.
void checkCalls(Poller::Handler& handler) { handler.ready(0); }

class WithoutDescriptors : public testing::Test, public tcp::Acceptor::Owner, public shm::Acceptor::Owner {
 protected:
  void accepted(int, tcp::Socket, Opener) override {}
  void accepted(int, shm::AcceptedConnection) override {}

  MemoryStore store_;
  Directory directory_{store_, {}};
  Poller poller_;
};

TEST_F(WithoutDescriptors, AnAcceptorWaits) {
  RailAddress address = {*parseIpAddress("127.0.0.1"), 8, 0};
  tcp::Acceptor acceptor(poller_, tcp::Socket::listen(address).value(), 1, directory_, *this);
  EXPECT_EQ(acceptor.expire(Clock::now()), Clock::time_point::max());
  checkCalls(acceptor);
  const tcp::Socket peer = tcp::Socket::connect(address.address, "", address).value();
  expectPatience(poller_, [&] { acceptor.expire(Clock::now()); });
  EXPECT_LT(acceptor.expire(Clock::now()), Clock::time_point::max()) << "it shakes hands with the peer";
}

TEST_F(WithoutDescriptors, AnAcceptorOfSharedMemoryWaits) {
  const shm::Doorbell bell = shm::Doorbell::create().value();
  const std::string name = shm::localName(directory_.publicKey());
  shm::Acceptor acceptor(poller_, shm::listenAt(name).value(), directory_, bell, *this);
  checkCalls(acceptor);
  const FileDescriptor peer = shm::connectTo(name).value();
  expectPatience(poller_, [&] { acceptor.expire(Clock::now()); });
  EXPECT_EQ(acceptor.numPending(), 1u);
}

TEST(DescriptorLimit, IsRaisedWhereConnectionsMayNeedMore) {
  constexpr rlim_t kFew = 256, kMany = 10'000;
  if (limit().rlim_max < kMany) GTEST_SKIP() << "this process may open " << limit().rlim_max << " descriptors";
  const Limited limited(kFew);
  MemoryStore store;
  const auto ofTwo = NetworkMessenger::create(store, loopbackOptions(0, 2, 1)).value();
  EXPECT_EQ(limit().rlim_cur, kFew);
  const auto ofMany = NetworkMessenger::create(store, loopbackOptions(1, 256, 1)).value();
  EXPECT_GE(limit().rlim_cur, 2u * 255 * 2);
  EXPECT_LT(limit().rlim_cur, kMany) << "children inherit it";
}

TEST(DescriptorLimit, IsEnoughForAllGroupsOfAProcess) {
  constexpr size_t kFew = 256, kNumPeers = 40;
  const Limited limited(kFew);
  std::optional<FdReservation> first(std::in_place, 1, kNumPeers);
  const rlim_t ofOne = limit().rlim_cur;
  const FdReservation second(1, kNumPeers);
  EXPECT_EQ(limit().rlim_cur, 2 * ofOne);
  first.reset();
  const FdReservation third(1, kNumPeers);
  EXPECT_EQ(limit().rlim_cur, 2 * ofOne) << "the first's is free again";
}

TEST(DescriptorLimit, LeavesRoomForSoManyFlows) {
  EXPECT_EQ(flowsWithin(1024, 1, 1), 256);
  EXPECT_EQ(flowsWithin(1024, 2, 63), 2);
  EXPECT_EQ(flowsWithin(1024, 4, 255), 1) << "one at least";
  EXPECT_EQ(flowsWithin(1024, 1, 0), 256);
}

}  // namespace
}  // namespace agspeed::comm
