// SPDX-License-Identifier: Apache-2.0
#include "runtime/tune/action.h"

namespace agspeed::runtime::tune {

std::string_view toString(ActionKind kind) {
  switch (kind) {
    case ActionKind::kCapture: return "capture";
    case ActionKind::kCompile: return "compile";
    case ActionKind::kPriority: return "priority";
    case ActionKind::kLoad: return "load";
    case ActionKind::kWait: return "wait";
    case ActionKind::kRun: return "run";
    case ActionKind::kRefine: return "refine";
    case ActionKind::kDecide: return "decide";
    case ActionKind::kRollback: return "rollback";
  }
  return "unknown";
}

std::string_view toString(Level level) {
  switch (level) {
    case Level::kSuspended: return "suspended";
    case Level::kIdle: return "idle";
    case Level::kRaised: return "raised";
  }
  return "unknown";
}

}  // namespace agspeed::runtime::tune
