// SPDX-License-Identifier: Apache-2.0
// How deep JSON from outside may be nested: parsers, printers and copies of it call themselves once for each level, and
// a text of some thousand brackets would end the process by its stack. To be asked before the text is parsed.
#pragma once

#include <string_view>

namespace agspeed {

/// No text that agspeed writes is nested half as deep.
inline constexpr int kMaxJsonDepth = 100;

/// Whether arrays and objects of a text lie more than kMaxJsonDepth deep in each other. It need not be valid JSON.
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
