// SPDX-License-Identifier: Apache-2.0
// LogEditor: changes what this thread logs while it lives. For whoever calls into parts that know numbers only and can
// say what those stand for. Editors nest: the innermost is asked, those around it are not.
#pragma once

#include <string>

namespace agspeed {

class LogEditor {
 public:
  LogEditor();
  LogEditor(const LogEditor&) = delete;

  /// A message, without the line's beginning and end; an empty one is not logged. Must not log.
  virtual std::string edit(std::string message) const = 0;

  /// What becomes of a message of this thread.
  static std::string apply(std::string message);

 protected:
  ~LogEditor();

 private:
  const LogEditor* const outer_;
};

}  // namespace agspeed
