// SPDX-License-Identifier: Apache-2.0
// When a poller wakes up: at once, after it has coalesced events, or when another thread wakes it.
#include "comm/io/poller.h"

#include <sched.h>

#include <thread>

#include <gtest/gtest.h>

#include "tests/comm/io/ready_descriptor.h"

namespace agspeed::comm::io {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// Memory that changes at a later poll.
struct ChangingMemory final : PolledMemory {
  bool poll() override {
    const bool hasChanged = numPolls > 0 && --numPolls == 0;
    if (hasChanged) std::this_thread::sleep_for(duration);
    return hasChanged;
  }
  void arm() override { ++numArmed; }
  void disarm() override {}

  int numPolls = 0;          ///< the number of polls until it changes; 0: never
  milliseconds duration{0};  ///< the time to process a change
  int numArmed = 0;
};

/// Waits until the memory changes at a poll that follows `numVain` polls without a change.
void waitForChange(Poller& poller, ChangingMemory& memory, int numVain) {
  memory.numPolls = numVain + 1;
  poller.wait(Clock::now() + seconds(60));
  EXPECT_EQ(memory.numPolls, 0);
}

/// True if a yield gives this processor to other processes for long. A Poller then sleeps on purpose, so some tests do
/// not apply.
bool isCrowded() {
  const Clock::time_point since = Clock::now();
  sched_yield();
  return Clock::now() - since > std::chrono::microseconds(500);
}

/// Waits for changes that come soon, until ten consecutive changes came while the memory was not armed. Skips the test
/// if other processes use the processor.
void expectToStayAwake(Poller& poller, ChangingMemory& memory) {
  constexpr int kWanted = 10;
  poller.setMemory(&memory);
  int numAwake = 0;
  int numCrowded = 0;
  for (const Clock::time_point end = Clock::now() + seconds(20); numAwake < kWanted && Clock::now() < end;) {
    const int before = memory.numArmed;
    numCrowded += isCrowded() ? 1 : 0;
    waitForChange(poller, memory, 1);
    numAwake = memory.numArmed == before ? numAwake + 1 : 0;
  }
  if (numAwake < kWanted && numCrowded > 0) {
    GTEST_SKIP() << "others kept the processor for long " << numCrowded << " times";
  }
  EXPECT_EQ(numAwake, kWanted);
  EXPECT_GE(memory.numArmed, 1) << "nothing is known at first";
}

TEST(Poller, StaysAwakeWhileMemoryChangesSoon) {
  Poller poller;
  ChangingMemory memory;
  expectToStayAwake(poller, memory);
}

TEST(Poller, StaysAwakeWhereTakingInWhatHasChangedTakesLong) {
  Poller poller;
  ChangingMemory memory;
  memory.duration = milliseconds(2);
  expectToStayAwake(poller, memory);
}

TEST(Poller, LooksAtDescriptorsWheneverItWaitsForMemory) {
  constexpr int kWaits = 20;
  Poller poller;
  ChangingMemory memory;
  poller.setMemory(&memory);
  ReadyDescriptor descriptor(poller);
  for (int i = 0; i < kWaits; ++i) waitForChange(poller, memory, 1);
  EXPECT_EQ(descriptor.numSeen, kWaits);
}

TEST(Poller, LooksAtDescriptorsNowAndThenWhileMemoryChanges) {
  constexpr int kWaits = 100;
  Poller poller;
  ChangingMemory memory;
  poller.setMemory(&memory);
  ReadyDescriptor descriptor(poller);
  for (int i = 0; i < kWaits; ++i) waitForChange(poller, memory, 0);
  EXPECT_GE(descriptor.numSeen, 1);
  EXPECT_LT(descriptor.numSeen, kWaits / 2);
}

TEST(Poller, FallsAsleepWhereMemoryDoesNotChangeSoon) {
  Poller poller;
  ChangingMemory memory;
  poller.setMemory(&memory);
  waitForChange(poller, memory, 1);
  const Clock::time_point until = Clock::now() + milliseconds(20);
  const int before = memory.numArmed;
  EXPECT_FALSE(poller.wait(until));
  EXPECT_GE(Clock::now(), until);
  EXPECT_EQ(memory.numArmed, before + 1);
}

TEST(Poller, LeavesWhatIsReadyUntilItHasCoalesced) {
  Poller poller;
  ReadyDescriptor descriptor(poller);
  const Clock::time_point coalesceUntil = Clock::now() + milliseconds(20);
  EXPECT_FALSE(poller.wait(coalesceUntil + seconds(10), coalesceUntil));
  EXPECT_GE(descriptor.seenAt, coalesceUntil);
}

TEST(Poller, IsWokenWhileItCoalesces) {
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

TEST(Poller, CoalescesNothingWithoutATimeToWait) {
  Poller poller;
  ReadyDescriptor descriptor(poller);
  const Clock::time_point coalesceUntil = Clock::now() + seconds(60);
  EXPECT_FALSE(poller.wait({}, coalesceUntil));
  EXPECT_LT(descriptor.seenAt, coalesceUntil);
  EXPECT_GT(descriptor.seenAt, Clock::time_point());
}

}  // namespace
}  // namespace agspeed::comm::io
