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
/// Whether an arm in this state will never be used.
inline bool isDead(ArmState state) {
  return state == ArmState::kRejected || state == ArmState::kFailed || state == ArmState::kSkipped;
}

struct StepFinished;

/// Step times and memory of one arm at one shape class.
struct ShapeRecord {
  RollingWindow seconds{256};  ///< undisturbed steps; many, so that short loads by others hardly change the median
  int64_t numSteps = 0;
  int64_t peakBytes = 0;  ///< highest peak of the undisturbed steps
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
  double lastSeconds = 0;  ///< time of the latest step, whether it counted or not
  std::map<int32_t, ShapeRecord> shapes;
  RollingWindow seconds{256};  ///< undisturbed steps of all shapes, for the report

  Comparison versusEager;
  Comparison duel;  ///< against `duelAgainst`, the best arm when this one was accepted
  std::string duelAgainst;
  int32_t numBlocks = 0;     ///< finished blocks against eager
  bool isConfirmed = false;  ///< whether it was accepted with as many pairs as the decision needs
  std::string beatenBy;      ///< the arm it lost to; empty if it lost for another reason
  bool isTooLarge = false;   ///< whether it lost because of its peak of memory

  bool isMeasurable() const { return state == ArmState::kReady && verdict == Verdict::kOpen; }
  bool isUsable() const { return state == ArmState::kReady; }
  /// Whether the arm still has to be compiled. An arm that lost in an earlier process is not compiled, unless it was
  /// reopened.
  bool isWaiting() const { return state == ArmState::kWaiting && verdict != Verdict::kLost; }
  bool isLoadable() const {
    return (state == ArmState::kCompiled || state == ArmState::kLoading) && verdict != Verdict::kLost;
  }
  /// Whether the arm has work in the background. If not, the driver answers a compile action at once.
  bool needsBackground() const { return spec.compileSeconds > 0; }
  bool isContender() const { return isUsable() && verdict != Verdict::kLost; }
  bool isDead() const { return tune::isDead(state); }
  /// Sets the state to skipped, with this reason.
  void skip(std::string why);
  /// Sets the verdict to accepted, because the arm is faster than eager or was chosen. `isEnough`: see isConfirmed.
  void accept(std::string why, bool isEnough);
  /// Whether the arm can be ready soon: it waits, needs no background work, and its `standsInFor` is empty.
  bool isQuick() const { return isWaiting() && !needsBackground() && spec.standsInFor.empty(); }
  /// Drops the verdict and its evidence, but keeps what was compiled.
  void reopen();
  /// Like reopen(), but also drops all steps, because the arm will run other graphs than before.
  void forget();
  /// Records a step. Returns false for the first step of a shape class on this arm, which warms caches and does not
  /// count.
  bool addStep(int32_t shape, const StepFinished& step, bool isUndisturbed);
  /// Returns the median of undisturbed steps of this shape class, or nothing if there were none.
  std::optional<double> typicalSeconds(int32_t shape) const;
};

}  // namespace agspeed::runtime::tune
