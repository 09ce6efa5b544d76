// SPDX-License-Identifier: Apache-2.0
// One line per event on stderr: "agspeed: kernel cache /x is not writable; compiling without it".
//
// Quiet at the default level. The setting AGSPEED_DEBUG selects the level. Any thread may log; lines never mix, because
// each is written by one call. A library inside a program with its own log can send its messages there (setLogSink).
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "runtime/base/format.h"

namespace agspeed {

/// Ordered by severity; python/agspeed/log.py uses the same names.
enum class LogLevel { kTrace, kInfo, kWarn };

/// "trace", "info", "warn".
std::string_view toString(LogLevel level);
/// Inverse of toString; nullopt for any other text.
std::optional<LogLevel> logLevelFromString(std::string_view text);

/// Whether messages of `level` are printed.
bool isLogged(LogLevel level);
/// The line for a message, newline included; newlines inside the message become spaces.
std::string formatLogLine(std::string_view message);
/// Writes the line, or passes the message to the sink; use AG_LOG.
void writeLogLine(LogLevel level, std::string_view message);

/// Takes messages from any thread. The logging code may hold locks, so the sink must not call back into it.
using LogSink = void (*)(LogLevel level, const std::string& message);
/// Sends messages of kInfo and above to `sink` instead of stderr, whatever AGSPEED_DEBUG says; nullptr: to stderr
/// again.
void setLogSink(LogSink sink);

}  // namespace agspeed

/// AG_LOG(kInfo, "compiled {}", name): the arguments are evaluated only when the line is printed.
#define AG_LOG(level, ...)                                                                     \
  do {                                                                                         \
    if (::agspeed::isLogged(::agspeed::LogLevel::level)) {                                     \
      ::agspeed::writeLogLine(::agspeed::LogLevel::level, ::agspeed::formatText(__VA_ARGS__)); \
    }                                                                                          \
  } while (false)
