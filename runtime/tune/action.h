// SPDX-License-Identifier: Apache-2.0
// What the tuner asks its driver to do.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace agspeed::runtime::tune {

enum class ActionKind {
  kCapture,   ///< capture the graph at the next step; answer with captureFinished or captureFailed
  kCompile,   ///< start compiling `arm` in the background at `level`; answer with armChanged
  kPriority,  ///< change the level of the running compile of `arm`; `seconds`: when the tuner will look at it again
  kLoad,      ///< load and gate the compiled `arm` now, in the foreground; answer with armChanged: "loading" and a
              ///< step where it has several parts and `seconds` are over after one of them
  kWait,      ///< block until `arm` changed its state or `seconds` are over (not in auto mode but for cached decisions)
  kRun,       ///< run `arm` from the next step on
  kRefine,    ///< of a group: `arm` is about to be decided on; arms that may be better are added now, or never
  kDecide,    ///< tuning is over, `arm` stays, running compiles are given up; `reason` says why
  kRollback,  ///< the promise was broken: back to eager; `reason` says why
};

/// How much of the machine a background compile may take.
enum class Level {
  kSuspended,  ///< stopped: the budget is spent
  kIdle,       ///< only what training leaves over
  kRaised,     ///< normal priority: paid from the earned budget, or the user waits anyway
};

struct Action {
  ActionKind kind = ActionKind::kRun;
  std::string arm;
  Level level = Level::kIdle;
  double seconds = 0;
  std::string reason;
};

std::string_view toString(ActionKind kind);
std::string_view toString(Level level);

}  // namespace agspeed::runtime::tune
