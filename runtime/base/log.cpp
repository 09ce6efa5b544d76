// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/log.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "runtime/base/knobs.h"

namespace agspeed {
namespace {

// Indexed by the enum's value.
constexpr std::array<std::string_view, 5> kNames = {"debug", "info", "warning", "error", "off"};

LogLevel readThreshold() {
  std::optional<LogLevel> level = logLevelFromString(knobs().logLevel);
  if (level) return *level;
  writeLogLine(LogLevel::kWarning, "AGSPEED_LOG_LEVEL=\"" + knobs().logLevel +
                                       "\" is none of debug, info, warning, error, off; using warning");
  return LogLevel::kWarning;
}

}  // namespace

std::string_view toString(LogLevel level) { return kNames[static_cast<size_t>(level)]; }

std::optional<LogLevel> logLevelFromString(std::string_view text) {
  auto found = std::find(kNames.begin(), kNames.end(), text);
  if (found == kNames.end()) return std::nullopt;
  return static_cast<LogLevel>(found - kNames.begin());
}

bool isLogged(LogLevel level) {
  static const LogLevel threshold = readThreshold();
  return level >= threshold;
}

std::string formatLogLine(LogLevel level, std::string_view message) {
  std::string line = "agspeed " + std::string(toString(level)) + ": " + std::string(message);
  std::replace(line.begin(), line.end(), '\n', ' ');
  return line + "\n";
}

void writeLogLine(LogLevel level, std::string_view message) {
  std::string line = formatLogLine(level, message);
  std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace agspeed
