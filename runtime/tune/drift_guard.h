// SPDX-License-Identifier: Apache-2.0
// DriftGuard: after the decision, checks that the chosen arm still keeps the promise "not slower than eager".
//
// Two signals. The step time of the chosen arm is watched per shape class; a lasting shift is only a *suspicion*,
// because a slower machine slows eager too. So is a plan that misses from its first steps on what it was chosen for,
// and one that runs graphs nobody has measured. The verdict comes from re-checks: ABBA blocks against eager, at most
// `guardFraction` of all steps eager in the long run. A suspicion (and a decision taken from the database, never
// measured in this process) buys a burst of re-checks at once, no more often than every kBurstSpacing steps. Not
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

  /// A decision was taken. `isUnmeasured`: it came from the database; a burst confirms it soon. `limits`: seconds by
  /// shape class, see `stepLimit`.
  void start(bool isUnmeasured, std::map<int32_t, double> limits = {});
  /// Seconds above which steps of an arm that was measured at `chosen`, beside eager at `eager`, are suspicious.
  static double stepLimit(double chosen, double eager);
  /// The chosen arm runs another graph, which was never measured: a burst confirms it soon.
  void doubt();
  /// Somebody else has a suspicion: a burst begins.
  void suspect();
  /// Somebody else re-checks instead of the burst that is due, or nobody does: it is due again later.
  void forgoBurst() { burstBlocks_ = 0; }
  void postponeBurst();
  /// A burst is due or under way.
  bool isBursting() const { return burstBlocks_ > 0; }
  /// A step of the chosen arm outside re-checks. Requires: undisturbed.
  void addSteadyStep(int32_t shape, double seconds);
  /// `count` steps ran, reported or not; `numEager` of them eagerly for a re-check.
  void addSteps(int64_t count, int64_t numEager);

  /// True when a re-check block of `eagerSteps` eager steps is due.
  bool isRecheckDue(int64_t eagerSteps) const;
  Comparison& recheck() { return recheck_; }
  /// A re-check block is complete: judges anew.
  void finishBlock();
  /// The interval that breaks the promise, or nothing.
  const std::optional<Interval>& broken() const { return broken_; }

  /// Steps until reports are of use again; the driver may keep silent that long.
  int64_t quietSteps(int64_t eagerSteps) const;

  int64_t numRechecks() const { return numBlocks_; }
  int64_t numSuspicions() const { return numSuspicions_; }
  const Comparison& recheck() const { return recheck_; }

 private:
  struct Level {
    RollingWindow first;  ///< fills once after the decision: the reference level
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
  int64_t numReported_ = 0;  ///< steady steps in the present watch window
  int64_t numBlocks_ = 0;
  int64_t numSuspicions_ = 0;
  int32_t burstBlocks_ = 0;  ///< blocks still to run at once
  bool isConfirming_ = false;
  int64_t confirmAtStep_ = 0;
};

}  // namespace agspeed::runtime::tune
