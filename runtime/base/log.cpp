// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/log.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "runtime/base/settings.h"

namespace agspeed {
namespace {

// Indexed by the enum's value.
constexpr std::array<std::string_view, 3> kNames = {"trace", "info", "warn"};

LogLevel readThreshold() {
  std::optional<LogLevel> level = logLevelFromString(settings().debug);
  if (level) return *level;
  writeLogLine("AGSPEED_DEBUG=\"" + settings().debug + "\" is none of warn, info, trace; using warn");
  return LogLevel::kWarn;
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

std::string formatLogLine(std::string_view message) {
  std::string line = "agspeed: " + std::string(message);
  std::replace(line.begin(), line.end(), '\n', ' ');
  return line + "\n";
}

void writeLogLine(std::string_view message) {
  std::string line = formatLogLine(message);
  std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace agspeed
