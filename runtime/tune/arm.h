// SPDX-License-Identifier: Apache-2.0
// Arm: everything known about one way to run the module: how far its compile got, what it cost, its step times and
// memory per shape class, and its comparison with eager.
//
//   state:    waiting -> compiling -> compiled -> loading -> ready            (how far it got; set by events)
//                 \___________\___________\__________\-> rejected (gate) | failed | skipped
//   verdict:  open -> accepted | lost                                         (what measuring said; set by the tuner)
//
// Not thread-safe; owned by the Tuner.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/tune/config.h"
#include "runtime/tune/measure/comparison.h"

namespace agspeed::runtime::tune {

enum class ArmState { kWaiting, kCompiling, kCompiled, kLoading, kReady, kRejected, kFailed, kSkipped };
enum class Verdict { kOpen, kAccepted, kLost };

StatusOr<ArmState> parseArmState(std::string_view name);
std::string_view toString(ArmState state);
std::string_view toString(Verdict verdict);

/// One finished training step, as the driver saw it.
struct StepReport {
  std::string arm;  ///< the arm that really ran (eager when a guard failed)
  double seconds = 0;
  std::string shape;       ///< shape class; only steps of the same class are compared
  int64_t peakBytes = 0;   ///< peak of live bytes during the step; 0 = not measured
  bool disturbed = false;  ///< outside load, first step after a recompile, a pause: never compared
};

/// Step times and memory of one arm at one shape class.
struct ShapeRecord {
  RollingWindow seconds{256};  ///< undisturbed steps; bursts of outside load must not pass for typical
  int64_t numSteps = 0;
  int64_t peakBytes = 0;  ///< highest of the undisturbed steps
  int64_t numPeaks = 0;
};

struct Arm {
  ArmSpec spec;
  ArmState state = ArmState::kWaiting;
  Verdict verdict = Verdict::kOpen;
  std::string reason;  ///< why it is rejected, failed, skipped, lost or accepted; a sentence

  double backgroundSeconds = 0;
  double foregroundSeconds = 0;
  int64_t numSteps = 0;
  double lastSeconds = 0;  ///< of the latest step, counted or not
  std::map<int32_t, ShapeRecord> shapes;
  RollingWindow seconds{256};  ///< undisturbed steps of all shapes, for the report

  Comparison versusEager;
  Comparison duel;  ///< against `duelAgainst`, the best arm when this one was accepted
  std::string duelAgainst;
  int32_t numBlocks = 0;     ///< finished, against eager
  bool isConfirmed = false;  ///< accepted with as many pairs as the decision needs
  std::string beatenBy;      ///< the arm it lost to; empty when it lost for a reason of its own

  bool isMeasurable() const { return state == ArmState::kReady && verdict == Verdict::kOpen; }
  bool isUsable() const { return state == ArmState::kReady; }
  /// To be compiled. An arm that lost in an earlier process is not, unless it is back in the race.
  bool isWaiting() const { return state == ArmState::kWaiting && verdict != Verdict::kLost; }
  bool isLoadable() const {
    return (state == ArmState::kCompiled || state == ArmState::kLoading) && verdict != Verdict::kLost;
  }
  /// False where asking for the compile is enough: the driver answers at once.
  bool needsBackground() const { return spec.compileSeconds > 0; }
  bool isContender() const { return isUsable() && verdict != Verdict::kLost; }
  bool isDead() const {
    return state == ArmState::kRejected || state == ArmState::kFailed || state == ArmState::kSkipped;
  }
  /// Forgets the verdict and its evidence, not what was compiled.
  void reopen();
  /// Forgets all steps as well: what it ran until now is no longer what it will run.
  void forget();
  /// Records a step. Returns false for the first step of a shape class on this arm: it warms caches and is not counted.
  bool addStep(int32_t shape, const StepReport& step, bool isUndisturbed);
  /// Median of undisturbed steps at this shape, if any were seen.
  std::optional<double> typicalSeconds(int32_t shape) const;
};

/// Why `arm` loses by memory against eager's peaks, or nothing. `eagerPeaks` holds eager's peak by shape class.
std::optional<std::string> memoryObjection(const Arm& arm, const std::map<int32_t, int64_t>& eagerPeaks,
                                           const TunerConfig& config);

}  // namespace agspeed::runtime::tune
