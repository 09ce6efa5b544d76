// SPDX-License-Identifier: Apache-2.0
#include "comm/messaging/liveness_monitor.h"

#include <vector>

#include <gtest/gtest.h>

namespace agspeed::comm {
namespace {

using std::chrono::milliseconds;
using Verdict = LivenessMonitor::Verdict;

/// A pulse that is looked at every `interval` with a timeout of 2 s.
struct Watched {
  /// What is found in `duration`, fine ones left out.
  std::vector<Verdict> look(milliseconds duration, bool isAwaited = true) {
    std::vector<Verdict> found;
    for (const Clock::time_point end = now + duration; now < end;) {
      now += interval;
      const Verdict verdict = pulse.look(now, isAwaited, milliseconds(2000));
      if (verdict != Verdict::kFine) found.push_back(verdict);
    }
    return found;
  }

  LivenessMonitor pulse;
  milliseconds interval = LivenessMonitor::kInterval;
  Clock::time_point now{std::chrono::hours(1)};
};

TEST(LivenessMonitor, ASilentPeerIsAskedThenWarnedOfThenLost) {
  Watched watched;
  EXPECT_EQ(watched.look(milliseconds(300)), std::vector{Verdict::kProbe});
  EXPECT_EQ(watched.look(milliseconds(300)), std::vector{Verdict::kWarn});
  EXPECT_EQ(watched.look(milliseconds(1400)), std::vector<Verdict>{});
  EXPECT_EQ(watched.look(milliseconds(100)), std::vector{Verdict::kLost});
}

TEST(LivenessMonitor, APeerThatAnswersIsAskedAgainAndNeverLost) {
  Watched watched;
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(watched.look(milliseconds(300)), std::vector{Verdict::kProbe}) << "round " << i;
    watched.pulse.heard();
    watched.look(milliseconds(100));
  }
}

TEST(LivenessMonitor, AnAnswerAfterAWarningIsReported) {
  Watched watched;
  watched.look(milliseconds(1000));
  watched.pulse.heard();
  EXPECT_EQ(watched.look(milliseconds(100)), std::vector{Verdict::kAnswered});
  EXPECT_EQ(watched.look(milliseconds(200)), std::vector{Verdict::kProbe});
}

TEST(LivenessMonitor, NobodyIsAskedWhoIsNotWaitedFor) {
  Watched watched;
  EXPECT_EQ(watched.look(milliseconds(5000), false), std::vector<Verdict>{});
  EXPECT_EQ(watched.look(milliseconds(200)), std::vector<Verdict>{}) << "the silence before does not count";
}

TEST(LivenessMonitor, TimeInWhichNobodyLookedDoesNotCount) {
  Watched watched;
  watched.look(milliseconds(600));
  watched.now += std::chrono::hours(1);  // this process was stopped
  EXPECT_EQ(watched.look(milliseconds(1200)), std::vector<Verdict>{});
  EXPECT_EQ(watched.look(milliseconds(200)), std::vector{Verdict::kLost});
}

}  // namespace
}  // namespace agspeed::comm
