// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/log.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>

#include "runtime/base/settings.h"

namespace agspeed {
namespace {

// Indexed by the enum's value.
constexpr std::array<std::string_view, 3> kNames = {"trace", "info", "warn"};

std::atomic<LogSink> currentSink = nullptr;

}  // namespace

std::string_view toString(LogLevel level) { return kNames[static_cast<size_t>(level)]; }

std::optional<LogLevel> logLevelFromString(std::string_view text) {
  auto found = std::find(kNames.begin(), kNames.end(), text);
  if (found == kNames.end()) return std::nullopt;
  return static_cast<LogLevel>(found - kNames.begin());
}

bool isLogged(LogLevel level) {
  static const LogLevel threshold = logLevelFromString(settings().debug).value_or(LogLevel::kWarn);
  return level >= threshold || (level >= LogLevel::kInfo && currentSink.load(std::memory_order_relaxed) != nullptr);
}

std::string formatLogLine(std::string_view message) {
  std::string line = "agspeed: " + std::string(message);
  std::replace(line.begin(), line.end(), '\n', ' ');
  return line + "\n";
}

void writeLogLine(LogLevel level, std::string_view message) {
  if (const LogSink sink = currentSink.load(std::memory_order_acquire); sink != nullptr && level >= LogLevel::kInfo) {
    return sink(level, std::string(message));
  }
  const std::string line = formatLogLine(message);
  std::fwrite(line.data(), 1, line.size(), stderr);
}

void setLogSink(LogSink sink) { currentSink.store(sink, std::memory_order_release); }

}  // namespace agspeed
