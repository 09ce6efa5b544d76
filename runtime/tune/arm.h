// SPDX-License-Identifier: Apache-2.0
// Arm: all known facts about one way to run the module: the state of its compile, its costs, its step times and memory
// per shape class, and its comparison with eager.
//
//   state:    waiting -> compiling -> compiled -> loading -> ready            (progress; set by events)
//                 \___________\___________\__________\-> rejected (gate) | failed | skipped
//   verdict:  open -> accepted | lost                                         (result of measuring; set by the tuner)
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
  std::string arm;  ///< the arm that really ran (eager if a guard failed)
  double seconds = 0;
  std::string shape;       ///< shape class; only steps of the same class are compared
  int64_t peakBytes = 0;   ///< peak of live bytes during the step; 0 = not measured
  bool disturbed = false;  ///< outside load, first step after a recompile, or a pause: never compared
};

/// Step times and memory of one arm at one shape class.
struct ShapeRecord {
  RollingWindow seconds{256};  ///< undisturbed steps, enough of them that bursts of outside load do not look typical
  int64_t numSteps = 0;
  int64_t peakBytes = 0;  ///< highest of the undisturbed steps
  int64_t numPeaks = 0;
};

struct Arm {
  ArmSpec spec;
  ArmState state = ArmState::kWaiting;
  Verdict verdict = Verdict::kOpen;
  std::string reason;  ///< why it is rejected, failed, skipped, lost or accepted, as a sentence

  double backgroundSeconds = 0;
  double foregroundSeconds = 0;
  int64_t numSteps = 0;
  double lastSeconds = 0;  ///< of the latest step, whether it counted or not
  std::map<int32_t, ShapeRecord> shapes;
  RollingWindow seconds{256};  ///< undisturbed steps of all shapes, for the report

  Comparison versusEager;
  Comparison duel;  ///< against `duelAgainst`, the best arm when this one was accepted
  std::string duelAgainst;
  int32_t numBlocks = 0;     ///< finished blocks against eager
  bool isConfirmed = false;  ///< whether it was accepted with as many pairs as the decision needs
  std::string beatenBy;      ///< the arm it lost to; empty if it lost for another reason

  bool isMeasurable() const { return state == ArmState::kReady && verdict == Verdict::kOpen; }
  bool isUsable() const { return state == ArmState::kReady; }
  /// Whether it still has to be compiled. An arm that lost in an earlier process does not, unless it was revived.
  bool isWaiting() const { return state == ArmState::kWaiting && verdict != Verdict::kLost; }
  bool isLoadable() const {
    return (state == ArmState::kCompiled || state == ArmState::kLoading) && verdict != Verdict::kLost;
  }
  /// False if the compile needs no background work, so that the driver answers at once.
  bool needsBackground() const { return spec.compileSeconds > 0; }
  bool isContender() const { return isUsable() && verdict != Verdict::kLost; }
  bool isDead() const {
    return state == ArmState::kRejected || state == ArmState::kFailed || state == ArmState::kSkipped;
  }
  /// Drops the verdict and its evidence, but keeps what was compiled.
  void reopen();
  /// Also drops all steps, because the arm will run other graphs than until now.
  void forget();
  /// Records a step. Returns false for the first step of a shape class on this arm, which warms caches and does not
  /// count.
  bool addStep(int32_t shape, const StepReport& step, bool isUndisturbed);
  /// Median of undisturbed steps at this shape, if any were seen.
  std::optional<double> typicalSeconds(int32_t shape) const;
};

/// Why `arm` loses by memory against eager's peaks; nothing if it does not. `eagerPeaks`: eager's peak by shape class.
std::optional<std::string> memoryObjection(const Arm& arm, const std::map<int32_t, int64_t>& eagerPeaks,
                                           const TunerConfig& config);

}  // namespace agspeed::runtime::tune
