// SPDX-License-Identifier: Apache-2.0
// The tuner's configuration: mode, arms in the order in which they are tried, and limits.
//
// Plain values, which the Tuner copies. Threads may share them while no thread writes.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"

namespace agspeed::runtime::tune {

/// Name of arm 0, which runs the module without agspeed. It always exists and is never compiled, gated or dropped.
inline constexpr std::string_view kEagerArm = "eager";

enum class Mode {
  kAuto,           ///< tuning may cost a share of the time trained so far
  kMax,            ///< compiles and measures everything as soon as possible; only budgetSeconds limits the cost
  kFastStart,      ///< tries only arms that the database names or that compile within `fastStartSeconds`
  kDeterministic,  ///< without timing: the first arm of `arms` that passes the gate, or the pinned arm
};

/// Returns: invalid argument unless the name is auto, max, fast-start or deterministic.
StatusOr<Mode> parseMode(std::string_view name);
std::string_view toString(Mode mode);

/// One named way to run the whole module, e.g. "native", or "inductor+r2:native" (region 2 runs native).
struct ArmSpec {
  std::string name;
  double compileSeconds = 0;     ///< expected compile time in the background; 0: no background work
  double foregroundSeconds = 0;  ///< expected time for which training stops: load and gate
  /// The name of an arm that runs the same operators with less overhead; empty: none. An arm with `standsInFor` is
  /// tried last. It is skipped if the named arm is ready and some arm is faster than eager.
  std::string standsInFor = {};
};

struct TunerConfig {
  Mode mode = Mode::kAuto;
  std::vector<ArmSpec> arms;  ///< without eager; in the order of compiling, and of choice in deterministic mode
  std::string pinnedArm;      ///< deterministic mode: the only arm considered; empty: the first that passes

  // Cost. In auto mode the slow-down by tuning stays <= min(budgetSeconds, fraction * undisturbed seconds so far), see
  // ledger.h. The fraction is searchFraction until the first decision, and budgetFraction for arms tried afterwards.
  double captureSeconds = 1.0;  ///< expected foreground cost of the capture, before anything is known
  double searchFraction = 0.20;
  double budgetFraction = 0.10;
  double budgetSeconds = std::numeric_limits<double>::infinity();
  double fastStartSeconds = 1.0;
  double maxPauseSeconds = 5.0;  ///< longest single pause of training for waits and loads (not in deterministic mode)
  bool hasSpareCores = false;    ///< max mode: a compile does not slow steps down; if false, they take turns

  // Measuring.
  double minGain = 0.01;           ///< an arm wins only if the interval of (its time / eager's) is below 1 - minGain
  double targetHalfWidth = 0.007;  ///< an interval this narrow ends the measurement of an arm
  double confidence = 0.99;        ///< the confidence of every reported interval
  int32_t minPairs = 12;           ///< with fewer pairs no interval is trusted
  int32_t maxPairs = 200;          ///< with this many pairs the arm is judged in any case
  double minRunSeconds = 0.002;    ///< steps of one A or B run are repeated until they last this long ...
  int32_t maxRunSteps = 64;        ///< ... but not more often than this
  double dropRatio = 1.3;          ///< an arm this many times slower than the best one is dropped early
  int32_t warmupSteps = 5;         ///< undisturbed eager steps before anything starts (not in max mode)
  int32_t maxLateSteps = 0;        ///< how many steps may run after a step before it is reported (devices)

  // Memory: an arm loses if its peak exceeds eager's by more than memoryFraction * (eager's peak) + memorySlackBytes.
  double memoryFraction = 0.15;
  int64_t memorySlackBytes = int64_t{16} << 20;

  // After the decision.
  double guardFraction = 0.005;     ///< share of steps that run eager as re-checks of the decision
  int32_t maxRetunes = 2;           ///< how often a rolled-back arm may be measured again
  int64_t retuneAfterSteps = 2000;  ///< steps between a rollback and the first new measurement; doubles each time
};

/// Returns ok, or invalid argument with a sentence that names the first invalid field.
Status validate(const TunerConfig& config);

}  // namespace agspeed::runtime::tune
