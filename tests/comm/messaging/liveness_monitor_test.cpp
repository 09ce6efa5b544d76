// SPDX-License-Identifier: Apache-2.0
#include "comm/messaging/liveness_monitor.h"

#include <vector>

#include <gtest/gtest.h>

namespace agspeed::comm::messaging {
namespace {

using std::chrono::milliseconds;
using Verdict = LivenessMonitor::Verdict;

/// A monitor that checks every `interval` with a timeout of 2 s.
struct Watched {
  /// Returns all findings in `duration` except good ones.
  std::vector<Verdict> check(milliseconds duration, bool isAwaited = true) {
    std::vector<Verdict> found;
    for (const io::Clock::time_point end = now + duration; now < end;) {
      now += interval;
      const Verdict verdict = monitor.check(now, isAwaited, milliseconds(2000));
      if (verdict != Verdict::kFine) found.push_back(verdict);
    }
    return found;
  }

  LivenessMonitor monitor;
  milliseconds interval = LivenessMonitor::kInterval;
  io::Clock::time_point now{std::chrono::hours(1)};
};

TEST(LivenessMonitor, ASilentPeerIsProbedThenWarnedOfThenLost) {
  Watched watched;
  EXPECT_EQ(watched.check(milliseconds(300)), std::vector{Verdict::kProbe});
  EXPECT_EQ(watched.check(milliseconds(300)), std::vector{Verdict::kWarn});
  EXPECT_EQ(watched.check(milliseconds(1400)), std::vector<Verdict>{});
  EXPECT_EQ(watched.check(milliseconds(100)), std::vector{Verdict::kLost});
}

TEST(LivenessMonitor, APeerThatAnswersIsProbedAgainAndNeverLost) {
  Watched watched;
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(watched.check(milliseconds(300)), std::vector{Verdict::kProbe}) << "round " << i;
    watched.monitor.heard();
    watched.check(milliseconds(100));
  }
}

TEST(LivenessMonitor, AnAnswerAfterAWarningIsReported) {
  Watched watched;
  watched.check(milliseconds(1000));
  watched.monitor.heard();
  EXPECT_EQ(watched.check(milliseconds(100)), std::vector{Verdict::kAnswered});
  EXPECT_EQ(watched.check(milliseconds(200)), std::vector{Verdict::kProbe});
}

TEST(LivenessMonitor, APeerIsProbedOnlyIfThisRankWaitsForIt) {
  Watched watched;
  EXPECT_EQ(watched.check(milliseconds(5000), false), std::vector<Verdict>{});
  EXPECT_EQ(watched.check(milliseconds(200)), std::vector<Verdict>{}) << "the silence before does not count";
}

TEST(LivenessMonitor, TimeWithoutChecksDoesNotCount) {
  Watched watched;
  watched.check(milliseconds(600));
  watched.now += std::chrono::hours(1);  // this process was stopped
  EXPECT_EQ(watched.check(milliseconds(1200)), std::vector<Verdict>{});
  EXPECT_EQ(watched.check(milliseconds(200)), std::vector{Verdict::kLost});
}

}  // namespace
}  // namespace agspeed::comm::messaging
