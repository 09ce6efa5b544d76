// SPDX-License-Identifier: Apache-2.0
#include "comm/io/active_timer.h"

#include <gtest/gtest.h>

namespace agspeed::comm::io {
namespace {

using std::chrono::milliseconds;

TEST(ActiveTimer, CountsTimeInWhichThisProcessLookedNowAndThen) {
  Clock::time_point now{std::chrono::hours(1)};
  ActiveTimer timer(now);
  Clock::duration counted{};
  for (int i = 0; i < 100; ++i) counted += timer.look(now += milliseconds(10));
  EXPECT_EQ(counted, milliseconds(1000));
}

TEST(ActiveTimer, CountsLittleOfASpanInWhichItDidNot) {
  Clock::time_point now{std::chrono::hours(1)};
  ActiveTimer timer(now);
  EXPECT_LE(timer.look(now += std::chrono::hours(1)), milliseconds(100)) << "it was stopped";
  EXPECT_EQ(timer.look(now += milliseconds(10)), milliseconds(10)) << "and goes on";
}

TEST(ActiveTimer, CountsNothingTwice) {
  const Clock::time_point now{std::chrono::hours(1)};
  ActiveTimer timer(now - milliseconds(10));
  EXPECT_EQ(timer.look(now), milliseconds(10));
  EXPECT_EQ(timer.look(now), milliseconds(0));
}

}  // namespace
}  // namespace agspeed::comm::io
