// SPDX-License-Identifier: Apache-2.0
// AG_CHECK: an invariant of ours, checked in every build. A failure is our bug: it prints file:line and throws
// InternalError, which python/csrc turns into agspeed.InternalError. Input from users never reaches it: validate with
// a Status (runtime/base/status.h) first.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

#include "runtime/base/format.h"

namespace agspeed {

/// Thrown by AG_CHECK only. Nothing but python/csrc and tests catches it.
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
