// SPDX-License-Identifier: Apache-2.0
#include "comm/engine/engine.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "comm/engine/operation.h"
#include "tests/comm/messaging/fake_messenger.h"

namespace agspeed::comm::engine {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// A messenger with unsent data. The data is sent when `mayFlush` is set and a thread drives the messenger that is not
/// the thread that made it.
class Unflushed final : public messaging::FakeMessenger {
 public:
  Unflushed() : messaging::FakeMessenger(1) {}
  bool progress(io::Clock::time_point) override {
    if (std::this_thread::get_id() != user_ && mayFlush) isFlushed_ = true;
    return false;
  }
  bool hasUnsent() const override { return !isFlushed_; }

  std::atomic<bool> mayFlush = true;

 private:
  const std::thread::id user_ = std::this_thread::get_id();
  std::atomic<bool> isFlushed_ = false;
};

/// While it lives, no thread can start, because its stack would be larger than the address space.
class NoMoreThreads {
 public:
  NoMoreThreads() {
    pthread_getattr_default_np(&before_);
    pthread_attr_t huge = before_;
    pthread_attr_setstacksize(&huge, size_t{1} << 48);
    pthread_setattr_default_np(&huge);
  }
  ~NoMoreThreads() { pthread_setattr_default_np(&before_); }

 private:
  pthread_attr_t before_;
};

int numThreads() {
  const std::filesystem::directory_iterator threads("/proc/self/task");
  return static_cast<int>(std::distance(begin(threads), end(threads)));
}

TEST(Engine, BytesOfFinishedSendsLeaveThoughTheUserIsBusy) {
  Unflushed messenger;
  Engine engine(messenger);
  // If there is nothing to do, and a caller polls often, the background thread does not drive.
  const io::Clock::time_point limit = io::Clock::now() + seconds(20);
  while (messenger.hasUnsent() && io::Clock::now() < limit) {
    engine.kick();
    std::this_thread::sleep_for(milliseconds(5));
  }
  EXPECT_FALSE(messenger.hasUnsent());
}

TEST(Engine, IsDrivenInTheBackgroundAfterALongWait) {
  Unflushed messenger;
  messenger.mayFlush = false;
  Engine engine(messenger);
  const std::atomic<bool> never = false;
  EXPECT_FALSE(engine.wait(never, io::Clock::now() + milliseconds(50)));
  messenger.mayFlush = true;
  const io::Clock::time_point limit = io::Clock::now() + seconds(20);
  while (messenger.hasUnsent() && io::Clock::now() < limit) std::this_thread::sleep_for(milliseconds(1));
  EXPECT_FALSE(messenger.hasUnsent());
}

TEST(Engine, AnActionThatMayWaitRunsByItsTimeWithoutOtherCalls) {
  Unflushed messenger;
  Engine engine(messenger);
  std::atomic<bool> hasRun = false;
  engine.enqueueBy(io::Clock::now() + milliseconds(2), [&] { hasRun = true; });
  const io::Clock::time_point limit = io::Clock::now() + seconds(20);
  while (!hasRun && io::Clock::now() < limit) std::this_thread::sleep_for(milliseconds(1));
  EXPECT_TRUE(hasRun);
}

TEST(Engine, AnActionThatMayWaitDoesSoUntilAnotherCall) {
  using std::chrono::hours;
  Unflushed messenger;
  Engine engine(messenger);
  std::vector<int> ran;
  const auto note = [&](int number) { return [&ran, number] { ran.push_back(number); }; };
  engine.enqueueBy(io::Clock::now() + hours(1), note(1));
  engine.enqueueBy(io::Clock::now() + hours(2), note(2));
  engine.runOnDriver([&] { ran.push_back(3); });
  engine.enqueueBy(io::Clock::now() + hours(1), note(4));
  std::atomic<bool> isLast = false;
  engine.enqueueBy(io::Clock::now() + hours(1), [&] { isLast = true; });
  const io::Clock::time_point limit = io::Clock::now() + seconds(20);
  while (!isLast && io::Clock::now() < limit) engine.kick();
  engine.runOnDriver([&] { EXPECT_EQ(ran, (std::vector<int>{1, 2, 3, 4})); });
  engine.enqueueBy(io::Clock::now() + hours(1), [&] { isLast = false; });
  const std::atomic<bool> never = false;
  while (isLast && io::Clock::now() < limit) engine.wait(never, io::Clock::now() + milliseconds(1));
  EXPECT_FALSE(isLast);
}

TEST(Operation, ACallbackOfOneThatWasStartedAgainWaitsForItsNextEnd) {
  constexpr int kRounds = 2000;
  Unflushed messenger;
  Engine engine(messenger);
  std::vector<std::unique_ptr<Operation>> operations;
  for (int i = 0; i < kRounds; ++i) operations.push_back(std::make_unique<Operation>(engine));
  std::atomic<int> numRestarted = 0, numCalled = 0, numEarly = 0;
  std::thread user([&] {
    for (const auto& operation : operations) {
      while (!operation->isDone()) std::this_thread::yield();
      operation->restart();
      operation->whenDone([&](const Status& status) {
        if (status.isOk()) ++numEarly;
        ++numCalled;
      });
      ++numRestarted;
    }
  });
  for (int i = 0; i < kRounds; ++i) {
    operations[static_cast<size_t>(i)]->complete({});
    while (numRestarted <= i) std::this_thread::yield();
    operations[static_cast<size_t>(i)]->complete(unavailable("the second end"));
  }
  user.join();
  const io::Clock::time_point limit = io::Clock::now() + seconds(20);
  while (numCalled < kRounds && io::Clock::now() < limit) std::this_thread::sleep_for(milliseconds(1));
  EXPECT_EQ(numCalled, kRounds);
  EXPECT_EQ(numEarly, 0);
}

TEST(Engine, CallbacksThatBlockAloneStartFewThreads) {
  constexpr int kCallbacks = 2000;
  std::promise<void> gate;
  const std::shared_future<void> isOpen = gate.get_future();
  std::atomic<int> numCalled = 0;
  int numStarted = 0;
  {
    Unflushed messenger;
    Engine engine(messenger);
    const int numBefore = numThreads();
    for (int i = 0; i < kCallbacks; ++i) {
      engine.callLater([&] {
        isOpen.wait();
        ++numCalled;
      });
    }
    numStarted = numThreads() - numBefore;
    gate.set_value();
  }
  EXPECT_EQ(numCalled, kCallbacks);
  EXPECT_LT(numStarted, kCallbacks / 10);
}

TEST(Engine, ACallbackMayWaitForThoseQueuedAfterIt) {
  constexpr size_t kDepth = 20;
  std::vector<std::promise<void>> calls(kDepth + 1);
  calls[kDepth].set_value();
  std::atomic<int> numInTime = 0;
  Unflushed messenger;
  Engine engine(messenger);
  for (size_t i = 0; i < kDepth; ++i) {
    engine.callLater([&, i] {
      numInTime += calls[i + 1].get_future().wait_for(seconds(20)) == std::future_status::ready ? 1 : 0;
      calls[i].set_value();
    });
  }
  calls[0].get_future().wait();
  EXPECT_EQ(numInTime, kDepth);
}

TEST(Engine, CallbacksRunOnTheThreadsThereAreWhereNoneCanBeStarted) {
  std::promise<void> isRunning, gate, isLastCalled;
  Unflushed messenger;
  Engine engine(messenger);
  engine.callLater([&] {
    isRunning.set_value();
    gate.get_future().wait();
  });
  isRunning.get_future().wait();
  {
    const NoMoreThreads noMore;
    ASSERT_THROW(std::thread([] {}).join(), std::system_error);
    EXPECT_NO_THROW(engine.callLater([&] { isLastCalled.set_value(); }));
  }
  gate.set_value();
  EXPECT_EQ(isLastCalled.get_future().wait_for(seconds(20)), std::future_status::ready);
}

}  // namespace
}  // namespace agspeed::comm::engine
