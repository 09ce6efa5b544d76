// SPDX-License-Identifier: Apache-2.0
// Executions over a messenger whose transfers end at once, so that only the execution does any work.
#include "comm/engine/execution.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <new>
#include <thread>

#include "comm/schedule/catalog.h"
#include "tests/comm/messaging/fake_messenger.h"

namespace {
thread_local size_t numAllocations = 0;
}  // namespace

void* operator new(size_t size) {
  ++numAllocations;
  if (void* memory = std::malloc(size ? size : 1)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace agspeed::comm::engine {
namespace {

/// Rank 0 of many ranks. Every transfer ends when it starts.
class InstantMessenger final : public messaging::FakeMessenger {
 public:
  using messaging::FakeMessenger::FakeMessenger;
  void send(messaging::Transfer& transfer) override { end(transfer); }
  void receive(messaging::Transfer& transfer) override { end(transfer); }
  bool progress(io::Clock::time_point until) override {
    std::unique_lock lock(mutex_);
    wakeUp_.wait_until(lock, std::min(until, io::Clock::now() + std::chrono::milliseconds(1)),
                       [&] { return isAwake_; });
    isAwake_ = false;
    return false;
  }
  void wake() override {
    std::lock_guard lock(mutex_);
    isAwake_ = true;
    wakeUp_.notify_all();
  }

  size_t numTransfers = 0;

 private:
  void end(messaging::Transfer& transfer) {
    ++numTransfers;
    transfer.finished({});
  }

  std::mutex mutex_;
  std::condition_variable wakeUp_;
  bool isAwake_ = false;
};

struct CountEnds final : ExecutionListener {
  int numEnded = 0;
  void executionEnded(Execution&) override { ++numEnded; }
  void executionFailed(Execution&, int, const Status& status) override { ADD_FAILURE() << status.toString(); }
};

TEST(Execution, RunningAgainAllocatesNothing) {
  constexpr int kRanks = 5;
  for (const schedule::Algorithm& algorithm : schedule::algorithms()) {
    if (algorithm.collective != schedule::Collective::kAllReduce) continue;
    SCOPED_TRACE(algorithm.name);
    InstantMessenger messenger(kRanks);
    Engine engine(messenger);
    CountEnds ends;
    const PreparedSchedule prepared(algorithm.make({algorithm.collective, 0, kRanks, 0}));
    Execution execution(prepared, engine, ends);
    std::vector<float> values(20001);
    const auto bytes = std::as_writable_bytes(std::span(values));
    const CollectiveCall call{
        .collective = schedule::Collective::kAllReduce, .dtype = DType::kF32, .input = {bytes}, .output = {bytes}};
    const std::vector<int> members = {0, 1, 2, 3, 4};
    const ExecutionRequest request{.call = &call, .members = members, .segmentElements = 64, .window = 3};
    size_t numInSteadyState = 1;
    engine.runOnDriver([&] {
      execution.start(request);
      const size_t before = numAllocations;
      execution.start(request);
      numInSteadyState = numAllocations - before;
    });
    EXPECT_EQ(ends.numEnded, 2);
    EXPECT_EQ(numInSteadyState, 0u);
    EXPECT_GT(messenger.numTransfers, 100u);
  }
}

TEST(Execution, EverySegmentUsesNamesOfItsOwn) {
  struct Recording final : messaging::FakeMessenger {
    using messaging::FakeMessenger::FakeMessenger;
    std::vector<std::pair<int, wire::MessageId>> names;
    void send(messaging::Transfer& transfer) override {
      names.emplace_back(transfer.peer, transfer.id);
      transfer.finished({});
    }
    bool progress(io::Clock::time_point) override {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
      return false;
    }
  } messenger(3);
  Engine engine(messenger);
  CountEnds ends;
  const auto* direct = findAlgorithm(schedule::Collective::kAllReduce, "direct");
  const PreparedSchedule prepared(direct->make({schedule::Collective::kAllReduce, 0, 3, 0}));
  Execution execution(prepared, engine, ends);
  std::vector<float> values(1000);
  const auto bytes = std::as_writable_bytes(std::span(values));
  const CollectiveCall call{
      .collective = schedule::Collective::kAllReduce, .dtype = DType::kF32, .input = {bytes}, .output = {bytes}};
  const std::vector<int> members = {0, 2, 1};
  engine.runOnDriver([&] {
    execution.start({.call = &call, .members = members, .communicator = 8, .sequence = 77, .segmentElements = 64});
  });
  EXPECT_EQ(ends.numEnded, 1);
  auto names = messenger.names;
  std::sort(names.begin(), names.end());
  EXPECT_EQ(std::adjacent_find(names.begin(), names.end()), names.end()) << "a name is used twice";
  for (const auto& [peer, id] : names) {
    EXPECT_EQ(id.communicator, 8u);
    EXPECT_EQ(id.sequence, 77u);
  }
}

}  // namespace
}  // namespace agspeed::comm::engine
