// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/log_editor.h"

#include <utility>

namespace agspeed {
namespace {

thread_local const LogEditor* innermost = nullptr;

}  // namespace

LogEditor::LogEditor() : outer_(innermost) { innermost = this; }

LogEditor::~LogEditor() { innermost = outer_; }

std::string LogEditor::apply(std::string message) {
  return innermost == nullptr ? message : innermost->edit(std::move(message));
}

}  // namespace agspeed
