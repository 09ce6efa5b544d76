// SPDX-License-Identifier: Apache-2.0
// Names in use, and bursts of operations that the driver takes together. A test sets which name follows which, because
// the queue learns it from times.
#include "comm/named/start_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "tests/comm/named/requests.h"

namespace agspeed::comm::named {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class StartQueueTest : public testing::Test {
 protected:
  NamedHandle operation(const std::string& name) {
    return std::make_shared<NamedOperation>(engine_, NamedCall{.request = requestFor(name)});
  }
  StartQueue::Added add(const std::vector<NamedHandle>& operations) { return queue_.add(operations, 3); }
  StartQueue::Added add(const std::string& name) { return add(std::vector{operation(name)}); }
  /// Returns the names of the operations that the driver takes.
  std::vector<std::string> take() {
    queue_.take(taken_);
    std::vector<std::string> names;
    for (const NamedHandle& each : taken_) names.push_back(each->request().name);
    return names;
  }
  /// Starts operations of these names and ends them. Afterwards each name is followed by the next one.
  void learn(const std::vector<std::string>& names) {
    std::vector<NamedHandle> operations;
    for (const std::string& name : names) operations.push_back(operation(name));
    (void)add(operations);
    (void)take();
    queue_.ended(operations);
    for (size_t i = 0; i + 1 < names.size(); ++i) {
      queue_.find(names[i])->follower = queue_.find(names[i + 1]).get();
    }
    known_.insert(known_.end(), operations.begin(), operations.end());
    passBurst();  // so that the next name is no follower of the last one
  }
  static void passBurst() { std::this_thread::sleep_for(2 * StartQueue::kBurst); }

  messaging::LoopbackGroup network_{1, {}};
  engine::Engine engine_{network_.messenger(0)};
  StartQueue queue_;
  std::vector<NamedHandle> taken_;
  std::vector<NamedHandle> known_;  ///< keeps names alive
};

TEST_F(StartQueueTest, TheDriverTakesAllOperationsInTheirOrder) {
  EXPECT_TRUE(add(std::vector{operation("c"), operation("a")}).isFirst);
  EXPECT_FALSE(add("b").isFirst);
  EXPECT_THAT(take(), ElementsAre("c", "a", "b"));
  EXPECT_THAT(take(), IsEmpty());
  EXPECT_TRUE(add("d").isFirst);
}

TEST_F(StartQueueTest, TheFirstStartWakesTheDriver) { EXPECT_TRUE(add("a").isKickDue); }

TEST_F(StartQueueTest, ANameInFlightIsRefusedUntilItsOperationHasEnded) {
  const NamedHandle first = operation("a");
  EXPECT_THAT(add(std::vector{first}).refused, IsEmpty());
  const std::vector<StartQueue::Refusal> refused = add("a").refused;
  ASSERT_EQ(refused.size(), 1u);
  EXPECT_EQ(refused[0].operation->request().name, "a");
  for (const Status& status : {refused[0].reason, queue_.admits("a", 3)}) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr("'a', at rank 3"));
  }
  EXPECT_TRUE(queue_.admits("b", 3).isOk());
  EXPECT_THAT(take(), ElementsAre("a"));
  queue_.ended(std::vector{first, NamedHandle()});
  EXPECT_TRUE(queue_.admits("a", 3).isOk());
  EXPECT_THAT(add(std::vector{first}).refused, IsEmpty()) << "an operation may be started again";
}

TEST_F(StartQueueTest, TheSecondOfTwoEqualNamesIsRefusedAlone) {
  const StartQueue::Added added = add(std::vector{operation("a"), operation("a"), operation("b")});
  EXPECT_EQ(added.refused.size(), 1u);
  EXPECT_THAT(take(), ElementsAre("a", "b"));
}

TEST_F(StartQueueTest, AClosedQueueRefusesWithItsReason) {
  EXPECT_TRUE(queue_.health().isOk());
  queue_.close(unavailable("rank 5 is lost"));
  const StartQueue::Added added = add("a");
  ASSERT_EQ(added.refused.size(), 1u);
  EXPECT_FALSE(added.isFirst || added.isKickDue);
  for (const Status& status : {added.refused[0].reason, queue_.admits("a", 3), queue_.health()}) {
    EXPECT_EQ(status.code(), StatusCode::kUnavailable);
    EXPECT_EQ(status.message(), "rank 5 is lost");
  }
  EXPECT_THAT(take(), IsEmpty());
}

TEST_F(StartQueueTest, ANameWithoutOperationsIsNotKept) {
  (void)add("a");
  EXPECT_THAT(take(), ElementsAre("a"));
  EXPECT_NE(queue_.find("a"), nullptr);
  queue_.ended(taken_);
  (void)add("b");
  EXPECT_THAT(take(), ElementsAre("b"));
  EXPECT_EQ(queue_.find("a"), nullptr);
}

TEST_F(StartQueueTest, AKnownBurstWakesTheDriverAfterItsLastName) {
  learn({"a", "b", "c"});
  const io::Clock::time_point before = io::Clock::now();
  const StartQueue::Added first = add("a");
  EXPECT_TRUE(first.isFirst && !first.isKickDue);
  EXPECT_GE(first.takeBy, before + StartQueue::kBurst);
  const StartQueue::Added middle = add("b");
  EXPECT_FALSE(middle.isFirst || middle.isKickDue);
  EXPECT_TRUE(add("c").isKickDue);
  EXPECT_THAT(take(), ElementsAre("a", "b", "c"));
}

TEST_F(StartQueueTest, AnotherNameThanTheKnownOneIsLearned) {
  learn({"a", "b"});
  learn({"c", "d"});
  (void)add("a");
  (void)add("c");
  EXPECT_EQ(queue_.find("a")->follower, queue_.find("c").get());
}

TEST_F(StartQueueTest, AFollowerThatDoesNotComeIsForgotten) {
  learn({"a", "b"});
  (void)add("a");
  passBurst();
  EXPECT_THAT(take(), ElementsAre("a"));
  EXPECT_EQ(queue_.find("a")->follower, nullptr);
}

TEST_F(StartQueueTest, ASlowBurstIsForgotten) {
  learn({"a", "b"});
  (void)add("a");
  passBurst();
  EXPECT_TRUE(add("b").isKickDue);
  EXPECT_EQ(queue_.find("a")->follower, nullptr);
}

TEST_F(StartQueueTest, ANameThatComesMuchLaterIsNoFollower) {
  learn({"a"});
  (void)add("a");
  (void)take();
  passBurst();
  (void)add("b");
  EXPECT_EQ(queue_.find("a")->follower, nullptr);
}

}  // namespace
}  // namespace agspeed::comm::named
