// SPDX-License-Identifier: Apache-2.0
// What the tuner is told before it starts: mode, arms in the order they are worth trying, and the limits it keeps.
//
// Plain values, copied into the Tuner; no ownership, safe to share between threads while nobody writes.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"

namespace agspeed::runtime::tune {

/// Name of arm 0, the untouched module. It exists always and is never compiled, gated or dropped.
inline constexpr std::string_view kEagerArm = "eager";

enum class Mode {
  kAuto,           ///< tuning pays with an earned share of the time trained so far
  kMax,            ///< everything is compiled and measured as soon as it can be, whatever it costs
  kFastStart,      ///< only what is known or compiles within `fastStartSeconds`
  kDeterministic,  ///< no timing at all: first arm of the fixed order that passes the gate, or the pinned one
};

/// Returns: invalid argument when the name is none of auto, max, fast-start, deterministic.
StatusOr<Mode> parseMode(std::string_view name);
std::string_view toString(Mode mode);

/// One named way to run the whole module, e.g. "native" or the refinement "inductor+r2:native".
struct ArmSpec {
  std::string name;
  double compileSeconds = 0;     ///< expected, in the background
  double foregroundSeconds = 0;  ///< expected while training stands still: load and gate
  /// An arm that runs the same operators with less overhead: this one comes last, and is not tried where that one is
  /// ready and something is faster than eager.
  std::string standsInFor = {};
};

struct TunerConfig {
  Mode mode = Mode::kAuto;
  std::vector<ArmSpec> arms;  ///< without eager; order = order of compiling, and of choice in deterministic mode
  std::string pinnedArm;      ///< deterministic mode: the only arm considered; empty = first that passes

  // Cost. Slow-down caused by tuning stays <= min(budgetSeconds, fraction * undisturbed seconds so far) in auto mode,
  // where the fraction is searchFraction until the first decision and budgetFraction for whatever is tried afterwards.
  double captureSeconds = 1.0;  ///< expected foreground cost of the capture, before anything is known
  double searchFraction = 0.20;
  double budgetFraction = 0.10;
  double budgetSeconds = std::numeric_limits<double>::infinity();
  double fastStartSeconds = 1.0;
  double maxPauseSeconds = 5.0;  ///< training waits or loads for no longer at a time (not in deterministic mode)
  bool hasSpareCores = false;    ///< max mode: a compile leaves steps alone; else it and training take turns

  // Measuring.
  double minGain = 0.01;           ///< an arm wins only if its whole interval lies below 1 - minGain of eager
  double targetHalfWidth = 0.007;  ///< an interval this narrow ends the measurement of an arm
  double confidence = 0.99;        ///< of every reported interval
  int32_t minPairs = 12;           ///< below, no interval is believed
  int32_t maxPairs = 200;          ///< then the arm is judged as it stands
  double minRunSeconds = 0.002;    ///< steps of one A or B run are repeated until they last this long ...
  int32_t maxRunSteps = 64;        ///< ... but not more often than this
  double dropRatio = 1.3;          ///< an arm this many times slower than the best one is dropped after two blocks
  int32_t warmupSteps = 5;         ///< undisturbed eager steps before anything starts (not in max mode)
  int32_t maxLateSteps = 0;        ///< steps that may run after one before that one is reported (devices)

  // Memory: an arm loses when its peak exceeds eager's by more than fraction * peak + slack.
  double memoryFraction = 0.15;
  int64_t memorySlackBytes = int64_t{16} << 20;

  // After the decision.
  double guardFraction = 0.005;     ///< share of steps that run eagerly again to check the promise
  int32_t maxRetunes = 2;           ///< how often a rolled-back arm may be measured again
  int64_t retuneAfterSteps = 2000;  ///< steps between a rollback and the first new measurement; doubles each time
};

/// Returns: a sentence naming the first field that makes no sense.
Status validate(const TunerConfig& config);

}  // namespace agspeed::runtime::tune
