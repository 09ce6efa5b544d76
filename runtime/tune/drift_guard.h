// SPDX-License-Identifier: Apache-2.0
// DriftGuard: checks after the decision that the chosen arm is still not slower than eager.
//
// It has two signals. First, it watches the step time of the chosen arm per shape class. A lasting shift is only a
// *suspicion*, because a slower machine slows eager, too. So is an arm whose first steps are slower than expected, and
// an arm that runs graphs that were never measured. Second, re-checks give the verdict: ABBA blocks against eager, with
// at most `guardFraction` of all steps eager in the long run. A suspicion starts a burst of re-checks at once, at most
// every kBurstSpacing steps. So does a decision taken from the database, which was never measured in this process. Not
// thread-safe; owned by the Tuner.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "runtime/tune/config.h"
#include "runtime/tune/measure/comparison.h"

namespace agspeed::runtime::tune {

class DriftGuard {
 public:
  explicit DriftGuard(const TunerConfig& config);

  /// A decision was taken. `isUnmeasured`: it came from the database, so a burst confirms it soon. `limits`: seconds by
  /// shape class, see `stepLimit`.
  void start(bool isUnmeasured, std::map<int32_t, double> limits = {});
  /// Seconds above which steps of an arm are suspicious. When it was chosen, its steps took `chosen` and eager's
  /// `eager`.
  static double stepLimit(double chosen, double eager);
  /// The chosen arm runs another graph, which was never measured; a burst confirms it soon.
  void doubt();
  /// Begins a burst for a suspicion that comes from outside.
  void suspect();
  /// forgoBurst(): drops the burst that is due, because another guard re-checks. postponeBurst(): drops it and makes it
  /// due again later.
  void forgoBurst() { burstBlocks_ = 0; }
  void postponeBurst();
  /// Whether a burst is due or running.
  bool isBursting() const { return burstBlocks_ > 0; }
  /// A step of the chosen arm outside re-checks. Requires: undisturbed.
  void addSteadyStep(int32_t shape, double seconds);
  /// `count` steps ran, reported or not; `numEager` of them eagerly for a re-check.
  void addSteps(int64_t count, int64_t numEager);

  /// Whether a re-check block with `eagerSteps` eager steps is due.
  bool isRecheckDue(int64_t eagerSteps) const;
  Comparison& recheck() { return recheck_; }
  /// A re-check block is complete: judges again.
  void finishBlock();
  /// The interval that shows the arm to be slower than eager, or nothing.
  const std::optional<Interval>& broken() const { return broken_; }

  /// How many steps the driver need not report from now on.
  int64_t quietSteps(int64_t eagerSteps) const;

  int64_t numRechecks() const { return numBlocks_; }
  int64_t numSuspicions() const { return numSuspicions_; }
  const Comparison& recheck() const { return recheck_; }

 private:
  struct Level {
    RollingWindow first;  ///< filled once after the decision: the reference level
    RollingWindow recent;
    Level();
  };
  bool hasShifted(const Level& level) const;
  bool isSlowFromTheStart(int32_t shape, const Level& level) const;
  bool mayBurst() const;
  void requestBurst();
  int64_t routineSpacing(int64_t eagerSteps) const;

  double fraction_;
  int32_t minPairs_;
  Comparison recheck_;
  std::optional<Interval> broken_;
  std::map<int32_t, Level> levels_;
  std::map<int32_t, double> limits_;
  int64_t numSteps_ = 0;
  int64_t numEagerSteps_ = 0;
  int64_t lastBlockStep_ = 0;
  int64_t lastBurstStep_ = 0;
  int64_t numReported_ = 0;  ///< steady steps that were reported so far
  int64_t numBlocks_ = 0;
  int64_t numSuspicions_ = 0;
  int32_t burstBlocks_ = 0;  ///< blocks still to run in this burst
  bool isConfirming_ = false;
  int64_t confirmAtStep_ = 0;
};

}  // namespace agspeed::runtime::tune
