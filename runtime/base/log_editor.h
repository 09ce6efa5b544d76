// SPDX-License-Identifier: Apache-2.0
// LogEditor: changes the messages that this thread logs while it lives. A caller uses it to explain numbers that the
// called code logs, for example what they stand for. Editors nest; only the innermost one is used.
#pragma once

#include <string>

namespace agspeed {

class LogEditor {
 public:
  LogEditor();
  LogEditor(const LogEditor&) = delete;

  /// Returns the changed message, without the line's prefix and end. An empty one is not logged. Must not log.
  virtual std::string edit(std::string message) const = 0;

  /// Applies this thread's innermost editor to a message.
  static std::string apply(std::string message);

 protected:
  ~LogEditor();

 private:
  const LogEditor* const outer_;
};

}  // namespace agspeed
