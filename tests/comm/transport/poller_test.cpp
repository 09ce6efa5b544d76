// SPDX-License-Identifier: Apache-2.0
// When a poller wakes up: at once, after a rest, or when somebody wakes it.
#include "comm/transport/poller.h"

#include <thread>

#include <gtest/gtest.h>

#include "tests/comm/transport/ready_descriptor.h"

namespace agspeed::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(Poller, LeavesWhatIsReadyUntilItsRestIsOver) {
  Poller poller;
  ReadyDescriptor descriptor(poller);
  const Clock::time_point restUntil = Clock::now() + milliseconds(20);
  EXPECT_FALSE(poller.wait(restUntil + seconds(10), restUntil));
  EXPECT_GE(descriptor.seenAt, restUntil);
}

TEST(Poller, IsWokenFromItsRest) {
  Poller poller;
  const Clock::time_point end = Clock::now() + seconds(60);
  std::thread waker([&] {
    std::this_thread::sleep_for(milliseconds(20));
    poller.wake();
  });
  EXPECT_TRUE(poller.wait(end, end));
  waker.join();
  EXPECT_LT(Clock::now(), end);
}

TEST(Poller, DoesNotRestWhenNobodyWantsToWait) {
  Poller poller;
  ReadyDescriptor descriptor(poller);
  const Clock::time_point restUntil = Clock::now() + seconds(60);
  EXPECT_FALSE(poller.wait({}, restUntil));
  EXPECT_LT(descriptor.seenAt, restUntil);
  EXPECT_GT(descriptor.seenAt, Clock::time_point());
}

}  // namespace
}  // namespace agspeed::comm
