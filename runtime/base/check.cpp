// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/check.h"
#include "runtime/base/format.h"

namespace agspeed {

void failCheck(const char* file, int line, const char* condition, std::string_view message) {
  std::string text = formatText("{}:{}: check failed: {}", file, line, condition);
  if (!message.empty()) text += ": " + std::string(message);
  throw InternalError(text + " (this is a bug in agspeed; please report it with this line)");
}

}  // namespace agspeed
