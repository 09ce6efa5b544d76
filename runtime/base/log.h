// SPDX-License-Identifier: Apache-2.0
// One line per event on stderr: "agspeed warning: kernel cache /x is not writable; compiling without it".
//
// Quiet at the default level. The level comes from the knob AGSPEED_LOG_LEVEL. Any thread may log; lines never mix,
// because each is written by one call.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace agspeed {

/// Ordered by severity. kOff is a threshold only, no message has it.
enum class LogLevel { kDebug, kInfo, kWarning, kError, kOff };

/// "debug", "info", "warning", "error", "off".
std::string_view toString(LogLevel level);
/// Inverse of toString; nullopt for any other text.
std::optional<LogLevel> logLevelFromString(std::string_view text);

/// Whether messages of `level` are printed.
bool isLogged(LogLevel level);
/// The line for a message, newline included; newlines inside the message become spaces.
std::string formatLogLine(LogLevel level, std::string_view message);
/// Writes the line, whatever the level; use AG_LOG.
void writeLogLine(LogLevel level, std::string_view message);

}  // namespace agspeed

/// AG_LOG(kInfo, "compiled " + name): the message is evaluated only when it is printed.
#define AG_LOG(level, message)                                        \
  do {                                                                \
    if (::agspeed::isLogged(::agspeed::LogLevel::level)) {            \
      ::agspeed::writeLogLine(::agspeed::LogLevel::level, (message)); \
    }                                                                 \
  } while (false)
