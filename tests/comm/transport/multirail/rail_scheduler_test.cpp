// SPDX-License-Identifier: Apache-2.0
#include "comm/transport/multirail/rail_scheduler.h"

#include <gtest/gtest.h>

#include "tests/comm/transport/fake_rail.h"

namespace agspeed::comm::multirail {
namespace {

constexpr uint32_t kLongest = RailScheduler::kLongBytes;

class RailSchedulerTest : public testing::Test {
 protected:
  RailSchedulerTest() {
    for (size_t rail = 0; rail < rails_.size(); ++rail) reachability_.railUp(rail);
  }
  transport::Rails makeRails() {
    transport::Rails rails;
    for (transport::FakeRail*& rail : fakes_) {
      auto owned = std::make_unique<transport::FakeRail>();
      rail = owned.get();
      rails.push_back(std::move(owned));
    }
    return rails;
  }
  void setSpeeds(double first, double second) {
    fakes_[0]->secondsPerByte = first;
    fakes_[1]->secondsPerByte = second;
  }
  uint32_t longest(double first, double second) {
    setSpeeds(first, second);
    return scheduler_.longestPayload(reachability_, kLongest);
  }

  transport::FakeRail* fakes_[2] = {};
  transport::Rails rails_ = makeRails();
  Reachability reachability_{2};
  RailScheduler scheduler_{rails_, 1};
};

TEST_F(RailSchedulerTest, EqualRailsAlternate) {
  EXPECT_EQ(scheduler_.nextRail(100), 0);
  EXPECT_EQ(scheduler_.nextRail(100), 0) << "nothing was sent";
  scheduler_.sentOn(0);
  EXPECT_EQ(scheduler_.nextRail(100), 1);
  scheduler_.sentOn(1);
  EXPECT_EQ(scheduler_.nextRail(100), 0);
}

TEST_F(RailSchedulerTest, AFrameTakesTheRailThatDeliversItFirst) {
  setSpeeds(2e-6, 1e-6);
  EXPECT_EQ(scheduler_.nextRail(100), 1);
  scheduler_.sentOn(1);
  EXPECT_EQ(scheduler_.nextRail(100), 1);
}

TEST_F(RailSchedulerTest, RailsAwayCarryWhatHomeOnesWouldDeliverMuchLater) {
  fakes_[0]->isHome = false;
  RailScheduler scheduler(rails_, 1);
  EXPECT_EQ(scheduler.nextRail(100), 1) << "rates are not known";
  setSpeeds(1e-6, 9e-6);
  EXPECT_EQ(scheduler.nextRail(100), 1) << "a millisecond more is not much";
  setSpeeds(1e-4, 2e-4);
  EXPECT_EQ(scheduler.nextRail(100), 1);
  setSpeeds(1e-4, 3e-4);
  EXPECT_EQ(scheduler.nextRail(100), 0);
  setSpeeds(1e-4, 1e-4);
  fakes_[1]->room = 0;
  EXPECT_EQ(scheduler.nextRail(100), 0);
}

TEST_F(RailSchedulerTest, AFullHomeRailIsWaitedForLonger) {
  fakes_[0]->isHome = false;
  RailScheduler scheduler(rails_, 1);
  fakes_[1]->room = 0;
  setSpeeds(1e-4, 1e-4);
  EXPECT_TRUE(scheduler.isFullOneWorthWaitingFor(reachability_, 100));
  setSpeeds(1e-4, 3e-4);
  EXPECT_FALSE(scheduler.isFullOneWorthWaitingFor(reachability_, 100));
}

TEST_F(RailSchedulerTest, FullRailsTakeNothing) {
  fakes_[0]->room = 0;
  EXPECT_EQ(scheduler_.nextRail(100), 1);
  EXPECT_TRUE(scheduler_.canAnySend());
  fakes_[1]->room = 0;
  EXPECT_EQ(scheduler_.nextRail(100), transport::kNoRail);
  EXPECT_FALSE(scheduler_.canAnySend());
}

TEST_F(RailSchedulerTest, WaitingPaysWhereAFullRailIsMuchQuicker) {
  setSpeeds(1e-7, 3e-6);
  EXPECT_FALSE(scheduler_.isFullOneWorthWaitingFor(reachability_, 16384)) << "none is full";
  fakes_[0]->room = 0;
  EXPECT_TRUE(scheduler_.isFullOneWorthWaitingFor(reachability_, 16384));
  reachability_.railDown(0, transport::LossCause::kStalled, "", io::Clock::now());
  EXPECT_FALSE(scheduler_.isFullOneWorthWaitingFor(reachability_, 16384)) << "it does not lead to the peer";
}

TEST_F(RailSchedulerTest, WaitingDoesNotPayForALittle) {
  fakes_[0]->room = 0;
  setSpeeds(2e-6, 3e-6);
  EXPECT_FALSE(scheduler_.isFullOneWorthWaitingFor(reachability_, 16384)) << "nearly as quick";
  setSpeeds(1e-9, 1e-7);
  EXPECT_FALSE(scheduler_.isFullOneWorthWaitingFor(reachability_, 16384)) << "by less than two milliseconds";
}

TEST_F(RailSchedulerTest, PayloadsAreLongWhereRailsAreAlikeAndQuick) {
  EXPECT_EQ(longest(2e-8, 2e-8), kLongest);
  EXPECT_EQ(longest(2e-9, 1e-8), kLongest) << "both quick";
  EXPECT_EQ(longest(9e-9, 3.6e-8), kLongest / 2) << "a fourth of the rate";
  EXPECT_EQ(longest(2e-7, 2e-7), 40000u) << "8 ms";
  EXPECT_EQ(longest(2e-6, 1e-6), RailScheduler::kSharedBytes) << "both slow";
}

TEST_F(RailSchedulerTest, RailsThatAreDownLimitNoPayload) {
  reachability_.railDown(0, transport::LossCause::kStalled, "", io::Clock::now());
  EXPECT_EQ(longest(1e-6, 2e-8), kLongest);
}

}  // namespace
}  // namespace agspeed::comm::multirail
