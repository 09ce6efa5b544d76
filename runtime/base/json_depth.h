// SPDX-License-Identifier: Apache-2.0
// Limits how deep JSON from outside may be nested. Parsers, printers and copies of JSON recurse once per level, so a
// text of some thousand brackets would overflow the stack. Check a text before it is parsed.
#pragma once

#include <string_view>

namespace agspeed {

/// Texts that agspeed writes are less than half as deep.
inline constexpr int kMaxJsonDepth = 100;

/// Whether arrays and objects are nested more than kMaxJsonDepth deep. The text need not be valid JSON.
inline bool isNestedTooDeep(std::string_view json) {
  int depth = 0;
  bool isString = false;
  for (size_t at = 0; at < json.size(); ++at) {
    const char each = json[at];
    if (isString && each == '\\') {
      ++at;
    } else if (each == '"') {
      isString = !isString;
    } else if (!isString && (each == '[' || each == '{')) {
      if (++depth > kMaxJsonDepth) return true;
    } else if (!isString && (each == ']' || each == '}')) {
      --depth;
    }
  }
  return false;
}

}  // namespace agspeed
