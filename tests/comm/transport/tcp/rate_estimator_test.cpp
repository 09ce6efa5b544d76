// SPDX-License-Identifier: Apache-2.0
// The estimated rate of a connection: it is measured only in periods in which bytes were always in flight.
#include "comm/transport/tcp/rate_estimator.h"

#include <gtest/gtest.h>

namespace agspeed::comm::tcp {
namespace {

using std::chrono::milliseconds;

class RateEstimatorTest : public ::testing::Test {
 protected:
  /// The connection carries `numBytes` in each of `numMilliseconds` milliseconds and is sampled after each.
  void carry(int numMilliseconds, uint64_t numBytes) {
    for (int i = 0; i < numMilliseconds; ++i) {
      now_ += milliseconds(1);
      acked_ += numBytes;
      meter_.update(now_, acked_, false, roundTripSeconds_);
    }
  }
  void rest(int numMilliseconds) {
    now_ += milliseconds(numMilliseconds);
    meter_.update(now_, acked_, true, roundTripSeconds_);
  }

  io::Clock::time_point now_{milliseconds(1'000'000)};
  uint64_t acked_ = 0;
  double roundTripSeconds_ = 100e-6;
  RateEstimator meter_;
};

TEST_F(RateEstimatorTest, KnowsNothingOfAConnectionThatNeverHadMuchToCarry) {
  for (int i = 0; i < 1000; ++i) {
    rest(1);
    carry(4, 100);
  }
  EXPECT_EQ(meter_.bytesPerSecond(), 0);
}

TEST_F(RateEstimatorTest, PausesDoNotLowerTheRate) {
  for (int i = 0; i < 20; ++i) {
    rest(100);
    carry(10, 10'000);
  }
  EXPECT_NEAR(meter_.bytesPerSecond(), 1e7, 1e5);
}

TEST_F(RateEstimatorTest, FollowsAPathThatChanges) {
  rest(1);
  carry(100, 25'000);
  EXPECT_NEAR(meter_.bytesPerSecond(), 2.5e7, 1e6);
  carry(600, 2'500);
  EXPECT_NEAR(meter_.bytesPerSecond(), 2.5e6, 2e5);
  carry(100, 25'000);
  EXPECT_NEAR(meter_.bytesPerSecond(), 2.5e7, 2e6);
}

TEST_F(RateEstimatorTest, WhatIsForgottenIsMeasuredAnew) {
  rest(1);
  carry(100, 2'500);
  ASSERT_NEAR(meter_.bytesPerSecond(), 2.5e6, 1e5);
  meter_.age(0, 1);
  meter_.age(1, 1);
  ASSERT_EQ(meter_.bytesPerSecond(), 0);
  rest(500);
  EXPECT_EQ(meter_.bytesPerSecond(), 0) << "a pause tells nothing";
  carry(10, 25'000);
  EXPECT_NEAR(meter_.bytesPerSecond(), 2.5e7, 1e5) << "at once, not by and by";
}

TEST_F(RateEstimatorTest, ARateIsForgottenWhenAllHaveCarriedHalfASecondsBytesSince) {
  rest(1);
  carry(100, 2'500);
  meter_.age(1'000'000, 2.5e7);
  meter_.age(13'400'000, 2.5e7);
  EXPECT_GT(meter_.bytesPerSecond(), 0) << "less than half a second's";
  meter_.age(99'000'000, 0);
  EXPECT_GT(meter_.bytesPerSecond(), 0) << "the rate over half a second is unknown";
  meter_.age(13'600'000, 2.5e7);
  EXPECT_EQ(meter_.bytesPerSecond(), 0);
}

TEST_F(RateEstimatorTest, ARateThatIsMeasuredAgainIsNotForgotten) {
  rest(1);
  for (uint64_t numAckedOfAll = 0; numAckedOfAll < 100'000'000; numAckedOfAll += 10'000'000) {
    carry(100, 2'500);
    meter_.age(numAckedOfAll, 2.5e7);
    EXPECT_GT(meter_.bytesPerSecond(), 0) << numAckedOfAll;
  }
}

TEST_F(RateEstimatorTest, TheRateOfBetterTimesIsThatOfThePathThoughOthersHoldItUpMostly) {
  rest(1);
  for (int i = 0; i < 20; ++i) {
    carry(110, 25'000);
    carry(220, 10'000);
  }
  EXPECT_GT(meter_.bestBytesPerSecond(), 2.0e7);
  EXPECT_LT(meter_.bestBytesPerSecond(), 2.6e7);
  EXPECT_LT(meter_.bytesPerSecond(), 1.2e7);
}

TEST_F(RateEstimatorTest, SingleFramesTellThatASlowPathHasRecovered) {
  const auto carryFrames = [this](int count) {
    for (int i = 0; i < count; ++i) {
      rest(2);
      acked_ += 16384;
      rest(1);
    }
  };
  rest(1);
  carry(600, 200);
  ASSERT_NEAR(meter_.bytesPerSecond(), 2e5, 4e4);
  carryFrames(8);  // a burst
  EXPECT_LT(meter_.bytesPerSecond(), 5e5);
  carryFrames(40);
  EXPECT_GT(meter_.bytesPerSecond(), 1.5e6);
  EXPECT_LT(meter_.bytesPerSecond(), 16.4e6);
}

TEST_F(RateEstimatorTest, FollowsAPathThatBecameTooSlowToCarryMuchBetweenPauses) {
  rest(1);
  carry(100, 25'000);
  for (int i = 0; i < 20; ++i) {
    rest(20);
    carry(40, 500);
  }
  EXPECT_NEAR(meter_.bytesPerSecond(), 5e5, 2e5);
}

TEST_F(RateEstimatorTest, TheBurstAfterAPauseIsForgotten) {
  rest(1);
  carry(1, 128 * 1024);
  carry(300, 6'000);
  EXPECT_NEAR(meter_.bytesPerSecond(), 6e6, 6e5);
}

TEST_F(RateEstimatorTest, TheFirstRoundTripWithoutAcknowledgementsWeighsLittle) {
  roundTripSeconds_ = 50e-3;
  rest(1);
  carry(50, 0);
  carry(1000, 10'000);
  EXPECT_NEAR(meter_.bytesPerSecond(), 1e7, 1e6);
}

}  // namespace
}  // namespace agspeed::comm::tcp
