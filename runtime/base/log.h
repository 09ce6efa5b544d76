// SPDX-License-Identifier: Apache-2.0
// One line per event on stderr: "agspeed: kernel cache /x is not writable; compiling without it".
//
// Quiet at the default level. The level comes from the setting AGSPEED_DEBUG. Any thread may log; lines never mix,
// because each is written by one call. A library within a program that has a log of its own hands its messages to that
// instead (setLogSink).
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "runtime/base/format.h"

namespace agspeed {

/// Ordered by severity; the names are those of python/agspeed/log.py.
enum class LogLevel { kTrace, kInfo, kWarn };

/// "trace", "info", "warn".
std::string_view toString(LogLevel level);
/// Inverse of toString; nullopt for any other text.
std::optional<LogLevel> logLevelFromString(std::string_view text);

/// Whether messages of `level` are printed.
bool isLogged(LogLevel level);
/// The line for a message, newline included; newlines inside the message become spaces.
std::string formatLogLine(std::string_view message);
/// Writes the line, or hands the message to the sink; use AG_LOG.
void writeLogLine(LogLevel level, std::string_view message);

/// Takes messages from any thread, with locks of the caller held: it must not call back.
using LogSink = void (*)(LogLevel level, const std::string& message);
/// Messages of kInfo and above go there instead of stderr, whatever AGSPEED_DEBUG says; nullptr: to stderr again.
void setLogSink(LogSink sink);

}  // namespace agspeed

/// AG_LOG(kInfo, "compiled {}", name): the arguments are evaluated only when the line is printed.
#define AG_LOG(level, ...)                                                                     \
  do {                                                                                         \
    if (::agspeed::isLogged(::agspeed::LogLevel::level)) {                                     \
      ::agspeed::writeLogLine(::agspeed::LogLevel::level, ::agspeed::formatText(__VA_ARGS__)); \
    }                                                                                          \
  } while (false)
