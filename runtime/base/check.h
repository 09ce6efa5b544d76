// SPDX-License-Identifier: Apache-2.0
// AG_CHECK: checks an invariant of our own code in every build. A failure is a bug of agspeed. It throws InternalError,
// whose message has file and line. python/csrc turns that into agspeed.errors.InternalError. User input never reaches
// AG_CHECK: validate input with a Status (runtime/base/status.h) first.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

#include "runtime/base/format.h"

namespace agspeed {

/// Thrown by AG_CHECK only. Only python/csrc and tests catch it by this type.
class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

/// Throws InternalError naming the condition, the place and the message.
[[noreturn]] void failCheck(const char* file, int line, const char* condition, std::string_view message);

}  // namespace agspeed

/// AG_CHECK(n > 0, "{} values", n): the arguments are evaluated only on failure.
#define AG_CHECK(condition, ...)                                                                \
  do {                                                                                          \
    if (!(condition)) [[unlikely]] {                                                            \
      ::agspeed::failCheck(__FILE__, __LINE__, #condition, ::agspeed::formatText(__VA_ARGS__)); \
    }                                                                                           \
  } while (false)
