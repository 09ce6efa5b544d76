// SPDX-License-Identifier: Apache-2.0
// The actions that the tuner asks its driver (python/agspeed/tuning) to carry out.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace agspeed::runtime::tune {

enum class ActionKind {
  kCapture,   ///< capture the graph at the next step; answer with CaptureFinished or CaptureFailed
  kCompile,   ///< start compiling `arm` in the background at `level`; answer with ArmChanged
  kPriority,  ///< change the level of the running compile of `arm`; `seconds`: when the tuner checks it again
  kLoad,      ///< load and gate the compiled `arm` now, in the foreground; answer with ArmChanged. If the load has
              ///< parts, stop after the part in which `seconds` have passed, and report the state "loading"
  kWait,      ///< block until `arm` changes its state or `seconds` have passed (in auto mode only for cached decisions)
  kRun,       ///< run `arm` from the next step on
  kRefine,    ///< groups only: `arm` will be chosen next; add arms now that may be better
  kDecide,    ///< tuning has ended: run `arm` from now on, and stop running compiles; `reason` says why
  kRollback,  ///< `arm` became slower than eager or failed: run eager; `reason` says why
};

/// The priority of a background compile.
enum class Level {
  kSuspended,  ///< stopped, because the budget is spent or training has its turn
  kIdle,       ///< idle priority: gets the processor time that training leaves
  kRaised,     ///< normal priority: the earned budget pays for it, or training waits anyway
};

struct Action {
  ActionKind kind = ActionKind::kRun;
  std::string arm = {};
  Level level = Level::kIdle;
  double seconds = 0;
  std::string reason = {};
};

std::string_view toString(ActionKind kind);
std::string_view toString(Level level);

}  // namespace agspeed::runtime::tune
