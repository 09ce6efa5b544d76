// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/check.h"

namespace agspeed {

void failCheck(const char* file, int line, const char* condition, std::string_view message) {
  std::string text = std::string(file) + ":" + std::to_string(line) + ": check failed: " + condition;
  if (!message.empty()) text += ": " + std::string(message);
  throw InternalError(text + " (this is a bug in agspeed; please report it with this line)");
}

}  // namespace agspeed
