// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "runtime/base/log.h"

namespace agspeed {
namespace {

TEST(Log, AMessageIsOneLineWithItsLevel) {
  EXPECT_EQ(formatLogLine(LogLevel::kWarning, "cache is read-only"), "agspeed warning: cache is read-only\n");
  EXPECT_EQ(formatLogLine(LogLevel::kInfo, "two\nlines"), "agspeed info: two lines\n");
}

TEST(Log, LevelNamesReadBack) {
  for (LogLevel level : {LogLevel::kDebug, LogLevel::kInfo, LogLevel::kWarning, LogLevel::kError, LogLevel::kOff}) {
    EXPECT_EQ(logLevelFromString(toString(level)), level);
  }
  EXPECT_FALSE(logLevelFromString("Warning"));
  EXPECT_FALSE(logLevelFromString(""));
}

TEST(Log, AMessageBelowTheThresholdIsNotEvaluated) {
  if (isLogged(LogLevel::kDebug)) GTEST_SKIP() << "[SKIP] AGSPEED_LOG_LEVEL=debug prints every level";
  int evaluations = 0;
  auto message = [&] {
    ++evaluations;
    return "costly";
  };
  AG_LOG(kDebug, message());
  EXPECT_EQ(evaluations, 0);
}

}  // namespace
}  // namespace agspeed
