// SPDX-License-Identifier: Apache-2.0
// DriftGuard: checks after the decision that the chosen arm is still not slower than eager.
//
// It works in two stages. First, it watches the step time of the chosen arm per shape class. If the steps become slower
// for long, or if the first steps are slower than expected, this is only a *suspicion*, because a slower machine slows
// eager, too. Second, re-checks give the verdict: ABBA blocks against eager (measure/comparison.h). In the long run, at
// most `guardFraction` of all steps are eager steps of re-checks. A suspicion starts a burst of re-checks at once, but
// not within kBurstSpacing steps of the burst before, nor within kBurstRest times the length of that burst. A burst
// also starts kConfirmAfter steps after a decision from the database, or after the arm began to run a new graph.
// Neither was measured in this process. Not thread-safe; owned by the Tuner.
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

  /// Begins to guard a decision. `isUnmeasured`: the decision came from the database, so a burst checks it soon.
  /// `limits`: stepLimit() of each shape class, in seconds.
  void start(bool isUnmeasured, std::map<int32_t, double> limits = {});
  /// Returns the seconds above which steps of the chosen arm are suspicious. `chosen`, `eager`: step times in seconds
  /// when the arm was chosen.
  static double stepLimit(double chosen, double eager);
  /// Records that the chosen arm runs another graph, which was never measured. A burst checks it soon.
  void doubt();
  /// Counts a suspicion and begins a burst.
  void suspect();
  /// forgoBurst() drops the burst that is due, because another guard re-checks. postponeBurst() drops it and makes it
  /// due again after kBurstSpacing steps.
  void forgoBurst() { burstBlocks_ = 0; }
  void postponeBurst();
  /// Whether a burst is due or running.
  bool isBursting() const { return burstBlocks_ > 0; }
  /// Adds a step of the chosen arm outside re-checks. Requires: the step was not disturbed.
  void addSteadyStep(int32_t shape, double seconds);
  /// Counts `count` steps, reported or not, of which `numEager` were eager steps of a re-check.
  void addSteps(int64_t count, int64_t numEager);

  /// Whether a re-check block with `eagerSteps` eager steps is due.
  bool isRecheckDue(int64_t eagerSteps) const;
  Comparison& recheck() { return recheck_; }
  /// Judges the pairs again after a complete re-check block.
  void finishBlock();
  /// Returns the interval that shows that the arm is slower than eager, or nothing.
  const std::optional<Interval>& broken() const { return broken_; }

  /// Returns how many steps the driver need not report from now on.
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
  void judge(bool endsBurst);
  /// The step from which on the eager steps of one more block are within their share.
  int64_t nextRoutineStep(int64_t eagerSteps) const;

  double fraction_;
  int32_t minPairs_;
  Comparison recheck_;
  std::optional<Interval> broken_;
  std::map<int32_t, Level> levels_;
  std::map<int32_t, double> limits_;
  int64_t numSteps_ = 0;
  int64_t numEagerSteps_ = 0;
  int64_t lastBlockStep_ = 0;
  int64_t burstBegin_ = 0;
  int64_t nextBurstStep_ = 0;  ///< no suspicion begins a burst before this step
  int64_t numReported_ = 0;    ///< steady steps that were reported so far
  int64_t numBlocks_ = 0;
  int64_t numSuspicions_ = 0;
  int32_t burstBlocks_ = 0;  ///< blocks still to run in this burst
  bool isConfirming_ = false;
  int64_t confirmAtStep_ = 0;
};

}  // namespace agspeed::runtime::tune
