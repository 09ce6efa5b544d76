// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "runtime/base/log.h"

namespace agspeed {
namespace {

TEST(Log, AMessageIsOneLine) {
  EXPECT_EQ(formatLogLine("cache is read-only"), "agspeed: cache is read-only\n");
  EXPECT_EQ(formatLogLine("two\nlines"), "agspeed: two lines\n");
}

TEST(Log, LevelNamesReadBack) {
  for (LogLevel level : {LogLevel::kTrace, LogLevel::kInfo, LogLevel::kWarn}) {
    EXPECT_EQ(logLevelFromString(toString(level)), level);
  }
  EXPECT_FALSE(logLevelFromString("Warn"));
  EXPECT_FALSE(logLevelFromString(""));
}

TEST(Log, AMessageBelowTheThresholdIsNotEvaluated) {
  if (isLogged(LogLevel::kTrace)) GTEST_SKIP() << "[SKIP] AGSPEED_DEBUG=trace prints every level";
  int evaluations = 0;
  auto message = [&] {
    ++evaluations;
    return "costly";
  };
  AG_LOG(kTrace, message());
  EXPECT_EQ(evaluations, 0);
}

std::vector<std::string> taken;

TEST(Log, ASinkTakesInfoAndWarnings) {
  setLogSink([](LogLevel level, const std::string& message) {
    taken.push_back(std::string(toString(level)) + " " + message);
  });
  AG_LOG(kInfo, "{} of {}", 1, 2);
  AG_LOG(kWarn, "full");
  setLogSink(nullptr);
  EXPECT_EQ(taken, (std::vector<std::string>{"info 1 of 2", "warn full"}));
  testing::internal::CaptureStderr();
  AG_LOG(kWarn, "alone");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "agspeed: alone\n");
}

}  // namespace
}  // namespace agspeed
