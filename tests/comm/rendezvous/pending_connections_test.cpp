// SPDX-License-Identifier: Apache-2.0
// The limits of connections before authentication: their number and their time.
#include "comm/rendezvous/pending_connections.h"

#include <gtest/gtest.h>

namespace agspeed::comm::rendezvous {
namespace {

using std::chrono::milliseconds;

class PendingConnectionsTest : public testing::Test {
 protected:
  using Connection = int;  // a number replaces the connection in this test

  std::vector<int> pending() {
    std::vector<int> numbers;
    pending_.forEach([&](const Connection& each) { numbers.push_back(each); });
    return numbers;
  }
  /// Lets time pass, calls takeLate() every 40 ms, and returns the late connections.
  std::vector<int> spend(Clock::duration duration) {
    std::vector<int> late;
    for (const Clock::time_point end = now_ + duration; now_ < end;) {
      for (const auto& each : pending_.takeLate(now_ += pending_.kCheckInterval)) late.push_back(*each);
    }
    return late;
  }

  PendingConnections<Connection> pending_{{.numConnections = 3, .numBytes = 10, .deadline = milliseconds(1000)}};
  Clock::time_point now_ = Clock::now();
};

TEST_F(PendingConnectionsTest, OneMoreThanTheLimitReplacesTheOldest) {
  for (int number = 0; number < 3; ++number) EXPECT_EQ(pending_.add(std::make_unique<int>(number)), nullptr);
  const std::unique_ptr<Connection> oldest = pending_.add(std::make_unique<int>(3));
  ASSERT_NE(oldest, nullptr);
  EXPECT_EQ(*oldest, 0);
  EXPECT_EQ(pending(), (std::vector{1, 2, 3}));
}

TEST_F(PendingConnectionsTest, EachIsLateAfterItsOwnDeadline) {
  (void)pending_.add(std::make_unique<int>(0));
  EXPECT_TRUE(spend(milliseconds(600)).empty());
  (void)pending_.add(std::make_unique<int>(1));
  EXPECT_EQ(spend(milliseconds(600)), std::vector{0});
  EXPECT_EQ(spend(milliseconds(600)), std::vector{1});
  EXPECT_TRUE(pending_.isEmpty());
}

TEST_F(PendingConnectionsTest, TimeInWhichThisProcessDidNotLookDoesNotCount) {
  (void)pending_.add(std::make_unique<int>(0));
  EXPECT_TRUE(spend(milliseconds(400)).empty());
  now_ += std::chrono::hours(1);
  EXPECT_TRUE(spend(milliseconds(400)).empty());
  EXPECT_EQ(spend(milliseconds(400)), std::vector{0});
}

TEST_F(PendingConnectionsTest, AVisitMayTakeTheVisitedConnection) {
  for (int number = 0; number < 3; ++number) (void)pending_.add(std::make_unique<int>(number));
  std::vector<std::unique_ptr<Connection>> taken;
  pending_.forEach([&](const Connection& each) {
    if (each != 1) taken.push_back(pending_.take(each));
  });
  ASSERT_EQ(taken.size(), 2u);
  EXPECT_EQ(*taken[0], 0);
  EXPECT_EQ(*taken[1], 2);
  EXPECT_EQ(pending(), std::vector{1});
}

}  // namespace
}  // namespace agspeed::comm::rendezvous
