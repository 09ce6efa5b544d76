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

/// Memory that changes at a look to come.
struct ChangingMemory final : Poller::Memory {
  bool look() override { return numLooks > 0 && --numLooks == 0; }
  void fallAsleep() override { ++numAsleep; }
  void awake() override {}

  int numLooks = 0;  ///< until it changes; 0: never
  int numAsleep = 0;
};

/// Waits until the memory changes at a look that follows `numVain` others.
void waitForChange(Poller& poller, ChangingMemory& memory, int numVain) {
  memory.numLooks = numVain + 1;
  poller.wait(Clock::now() + seconds(60));
  EXPECT_EQ(memory.numLooks, 0);
}

TEST(Poller, StaysAwakeWhileMemoryChangesSoon) {
  constexpr int kRounds = 100;
  Poller poller;
  ChangingMemory memory;
  poller.setMemory(&memory);
  for (int i = 0; i < kRounds; ++i) {
    waitForChange(poller, memory, 1);
    EXPECT_GE(memory.numAsleep, 1) << "nothing is known at first";
    waitForChange(poller, memory, 1);
  }
  EXPECT_LT(memory.numAsleep, kRounds);  // a busy machine may take its time now and then
}

TEST(Poller, FallsAsleepWhereMemoryDoesNotChangeSoon) {
  Poller poller;
  ChangingMemory memory;
  poller.setMemory(&memory);
  waitForChange(poller, memory, 1);
  const Clock::time_point until = Clock::now() + milliseconds(20);
  const int before = memory.numAsleep;
  EXPECT_FALSE(poller.wait(until));
  EXPECT_GE(Clock::now(), until);
  EXPECT_EQ(memory.numAsleep, before + 1);
}

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
