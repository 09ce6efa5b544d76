// SPDX-License-Identifier: Apache-2.0
#include "comm/collective/collective_queue.h"

#include <gtest/gtest.h>

#include "comm/messaging/loopback_messenger.h"

namespace agspeed::comm::collective {
namespace {

using Handle = CollectiveQueue::Handle;

constexpr size_t kLimit = 1000;

/// A queue of a group of two ranks. Operations have one byte unless a test says otherwise. Operation i has sequence i.
class Queue : public testing::Test {
 protected:
  Queue() : network_(1), engine_(network_.messenger(0)), queue(2, kLimit) {}

  Handle make(size_t numBytes = 1, int priority = 0) {
    auto operation = std::make_shared<CollectiveOperation>(engine_);
    operation->call.collective = schedule::Collective::kBroadcast;
    operation->call.output = {std::span(bytes_).first(numBytes)};
    operation->priority = priority;
    operation->fitted.segmentBytes = SIZE_MAX / 4;
    operation->sequence = ++sequence_;
    return operation;
  }
  Handle add(size_t numBytes = 1, int priority = 0) {
    Handle operation = make(numBytes, priority);
    queue.add(operation);
    return operation;
  }
  /// Starts the next operation. Returns its sequence, or 0.
  uint64_t startNext() {
    const Handle next = queue.startNext();
    if (next == nullptr) return 0;
    next->execution = executionOf(next->sequence);
    return next->sequence;
  }
  void finish(uint64_t sequence) { queue.finish(*executionOf(sequence)); }

 private:
  /// A dummy pointer, because the queue only compares addresses.
  engine::Execution* executionOf(uint64_t sequence) {
    return reinterpret_cast<engine::Execution*>(&bytes_[8 * sequence]);
  }

  messaging::LoopbackGroup network_;
  engine::Engine engine_;
  std::vector<std::byte> bytes_ = std::vector<std::byte>(4096);
  uint64_t sequence_ = 0;

 protected:
  CollectiveQueue queue;
};

TEST_F(Queue, StartsInOrder) {
  add();
  add();
  EXPECT_EQ(startNext(), 1u);
  EXPECT_EQ(startNext(), 2u);
  EXPECT_EQ(startNext(), 0u);
}

TEST_F(Queue, TheOldestStartsWhateverThereIsInFlight) {
  add(900);
  add(900);
  EXPECT_EQ(startNext(), 1u);
  EXPECT_EQ(startNext(), 0u) << "the limit is 1000";
  finish(1);
  EXPECT_EQ(startNext(), 2u);
}

TEST_F(Queue, OthersStartByPriorityWhileTheirBytesFit) {
  add();
  add(600, 1);
  add(500, -1);
  EXPECT_EQ(startNext(), 1u);
  EXPECT_EQ(startNext(), 3u);
  EXPECT_EQ(startNext(), 0u);
  finish(3);
  EXPECT_EQ(startNext(), 2u);
}

TEST_F(Queue, SegmentsAndWindowBoundWhatCounts) {
  add(900)->fitted.segmentBytes = 100;  // 100 bytes for each of two ranks
  add(800);
  EXPECT_EQ(startNext(), 1u);
  EXPECT_EQ(startNext(), 2u);
}

TEST_F(Queue, OneWhoseInputIsToComeLetsOthersPassAndKeepsItsPlace) {
  const Handle slow = add();
  slow->readiness = [] { return StatusOr<bool>(false); };
  add();
  EXPECT_EQ(startNext(), 2u);
  EXPECT_EQ(startNext(), 0u);
  slow->readiness = nullptr;
  EXPECT_EQ(startNext(), 1u);
}

TEST_F(Queue, ABarrierStartsAsTheOldestAndLetsOthersPass) {
  add();
  const Handle barrier = add();
  barrier->call.collective = schedule::Collective::kBarrier;
  add();
  EXPECT_EQ(startNext(), 1u);
  EXPECT_EQ(startNext(), 3u);
  EXPECT_EQ(startNext(), 0u);
  EXPECT_EQ(queue.holderOf(*barrier)->sequence, 1u);
  finish(1);
  EXPECT_EQ(startNext(), 2u);
}

TEST_F(Queue, AnOlderOperationThatWaitsHoldsABarrier) {
  const Handle older = add();
  older->readiness = [] { return StatusOr<bool>(false); };
  const Handle barrier = add();
  barrier->call.collective = schedule::Collective::kBarrier;
  EXPECT_EQ(startNext(), 0u);
  EXPECT_EQ(queue.holderOf(*barrier), older.get());
}

TEST_F(Queue, OperationsWaitForAnExchangeBeforeThem) {
  const Handle exchange = make();
  exchange->isHostStatsExchange = true;
  queue.add(exchange);
  const Handle later = add(1, -5);
  EXPECT_EQ(startNext(), 1u);
  EXPECT_EQ(startNext(), 0u);
  EXPECT_EQ(queue.holderOf(*later), exchange.get());
  finish(1);
  EXPECT_EQ(startNext(), 2u);
}

TEST_F(Queue, NothingHoldsAnOperationThatOnlyLacksRoom) {
  add(900);
  const Handle large = add(900);
  startNext();
  EXPECT_EQ(queue.holderOf(*large), nullptr);
}

TEST_F(Queue, TakenOperationsLeaveRoom) {
  add(900);
  add(900);
  startNext();
  const CollectiveQueue::Operations all = queue.takeAll();
  EXPECT_EQ(all.running.size(), 1u);
  EXPECT_EQ(all.waiting.size(), 1u);
  add(900);
  EXPECT_EQ(startNext(), 3u);
}

}  // namespace
}  // namespace agspeed::comm::collective
