// SPDX-License-Identifier: Apache-2.0
#include "comm/collective/point_to_point.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <set>

#include "comm/messaging/loopback_messenger.h"
#include "tests/comm/messaging/fake_messenger.h"

namespace agspeed::comm::collective {
namespace {

/// Keeps transfers until the test ends them. Offers the messages that the test sets.
class ManualMessenger final : public messaging::FakeMessenger {
 public:
  ManualMessenger() : messaging::FakeMessenger(3) {}
  void send(messaging::Transfer& transfer) override { started.push_back(&transfer); }
  void receive(messaging::Transfer& transfer) override { started.push_back(&transfer); }
  void cancel(messaging::Transfer& transfer, const Status& reason) override {
    ++numCancelled;
    transfer.finished(reason);
  }
  bool probe(int peer, const wire::MessageId& id) const override { return offered.contains({peer, id.sequence}); }
  bool progress(io::Clock::time_point until) override {
    std::unique_lock lock(mutex_);
    wakeUp_.wait_until(lock, std::min(until, io::Clock::now() + std::chrono::milliseconds(1)),
                       [&] { return isAwake_; });
    isAwake_ = false;
    return false;
  }
  void wake() override {
    const std::lock_guard lock(mutex_);
    isAwake_ = true;
    wakeUp_.notify_all();
  }

  std::vector<messaging::Transfer*> started;
  std::set<std::pair<int, uint64_t>> offered;
  int numCancelled = 0;

 private:
  std::mutex mutex_;
  std::condition_variable wakeUp_;
  bool isAwake_ = false;
};

struct Listener final : TransferListener {
  void transferFailed(int rank, const Status& status) override {
    ++numFailures;
    failedRank = rank;
    failure = status;
  }

  int numFailures = 0;
  int failedRank = -1;
  Status failure;
};

class Messages : public testing::Test {
 protected:
  Messages() : engine(messenger), messages(engine, listener, kMembers, 0, 11, "world") {}
  ~Messages() override {
    onDriver([&] {
      for (const auto& operation : messages.takeAll(unavailable("the test ends"))) end(*operation);
      messages.close();
    });
  }

  void onDriver(const std::function<void()>& action) { engine.runOnDriver(action); }
  std::shared_ptr<MessageOperation> add(bool isSend, int rank, uint32_t tag = 5) {
    auto operation = std::make_shared<MessageOperation>(engine);
    operation->isSend = isSend;
    operation->rank = rank;
    operation->tag = tag;
    engine.operationStarted();
    onDriver([&] { messages.add(operation); });
    return operation;
  }
  Status start(MessageOperation& operation) {
    Status status;
    onDriver([&] { status = messages.start(operation); });
    return status;
  }
  std::shared_ptr<MessageOperation> started(bool isSend, int rank, uint32_t tag = 5) {
    auto operation = add(isSend, rank, tag);
    EXPECT_TRUE(start(*operation).isOk());
    return operation;
  }
  void end(engine::Operation& operation) {
    operation.complete(unavailable("ended"));
    engine.operationEnded();
  }

  static inline const std::vector<int> kMembers = {0, 2, 1};
  ManualMessenger messenger;
  engine::Engine engine;
  Listener listener;
  PointToPoint messages;
};

TEST_F(Messages, AreCountedPerRankTagAndDirection) {
  for (const auto& [isSend, rank, tag] : std::vector<std::tuple<bool, int, uint32_t>>{
           {true, 1, 5}, {true, 1, 5}, {true, 2, 5}, {true, 1, 6}, {false, 1, 5}}) {
    started(isSend, rank, tag);
  }
  std::vector<uint64_t> sequences;
  for (const messaging::Transfer* transfer : messenger.started) sequences.push_back(transfer->id.sequence);
  EXPECT_EQ(sequences, (std::vector<uint64_t>{1, 2, 1, 1, 1}));
  EXPECT_EQ(messenger.started[0]->peer, 2) << "the messenger's rank of member 1";
  EXPECT_EQ(messenger.started[0]->id.communicator, 11u);
}

TEST_F(Messages, EndWithTheirTransfer) {
  const auto send = started(true, 1);
  onDriver([&] { messenger.started[0]->finished({}); });
  EXPECT_TRUE(send->isDone() && send->status().isOk());
  EXPECT_TRUE(messages.underWay().empty());
}

TEST_F(Messages, AReceiveFromAnyRankTakesItsPlaceAmongThoseOfTheRankItFinds) {
  started(false, 2);
  const auto any = started(false, kAnyRank);
  EXPECT_EQ(any->rank, kAnyRank);
  messenger.offered = {{1, 1}, {1, 2}};  // member 2 offers its first two messages
  onDriver([&] { EXPECT_TRUE(messages.startWaiting().isOk()); });
  EXPECT_EQ(any->rank, 2);
  EXPECT_EQ(any->id.sequence, 2u);
}

TEST_F(Messages, NoSourceIsLeftOut) {
  messenger.offered = {{2, 1}, {2, 2}, {1, 1}};
  const auto first = started(false, kAnyRank), second = started(false, kAnyRank);
  EXPECT_EQ(first->rank, 1);
  EXPECT_EQ(second->rank, 2);
}

TEST_F(Messages, ASendStartsWhenItsBytesAreThereAndKeepsItsSequence) {
  const auto late = add(true, 1);
  bool isThere = false;
  late->readiness = [&] { return StatusOr<bool>(isThere); };
  EXPECT_TRUE(start(*late).isOk());
  const auto quick = started(true, 1);
  ASSERT_EQ(messenger.started.size(), 1u);
  EXPECT_EQ(quick->id.sequence, 2u);
  isThere = true;
  onDriver([&] { EXPECT_TRUE(messages.startWaiting().isOk()); });
  ASSERT_EQ(messenger.started.size(), 2u);
  EXPECT_EQ(messenger.started[1]->id.sequence, 1u);
}

TEST_F(Messages, BytesThatCannotBeHadFailTheStart) {
  const auto broken = add(true, 1);
  broken->readiness = [] { return StatusOr<bool>(unavailable("the device is gone")); };
  EXPECT_EQ(start(*broken).message(), "the device is gone");
}

TEST_F(Messages, TheFirstFailedTransferIsReportedOnceAndNotFromTheMessenger) {
  const auto one = started(true, 1), other = started(true, 2);
  onDriver([&] {
    messenger.started[0]->finished(unavailable("no way"));
    messenger.started[1]->finished(unavailable("neither"));
    EXPECT_EQ(listener.numFailures, 0);
  });
  onDriver([] {});
  EXPECT_EQ(listener.numFailures, 1);
  EXPECT_EQ(listener.failedRank, 1);
  EXPECT_EQ(listener.failure.message(), "no way");
  EXPECT_FALSE(one->isDone());
}

TEST_F(Messages, TakenOnesAreCancelledAndLeftToTheCaller) {
  const auto receive = started(false, 1);
  started(false, kAnyRank);
  onDriver([&] {
    const auto taken = messages.takeAll(unavailable("it is over"));
    EXPECT_EQ(taken.size(), 2u);
    for (const auto& operation : taken) end(*operation);
  });
  EXPECT_EQ(messenger.numCancelled, 1) << "the one that had found no source was not under way";
  EXPECT_EQ(receive->status().message(), "ended");
}

}  // namespace
}  // namespace agspeed::comm::collective
