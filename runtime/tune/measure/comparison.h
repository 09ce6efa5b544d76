// SPDX-License-Identifier: Apache-2.0
// Comparison: pairs of runs of two arms, and the ratio of their step times.
// AbbaSchedule: chooses which of the two arms runs next, and which of the finished steps count.
//
// One block is A B B A: A = reference (eager, or the best arm so far), B = the arm under test. A *run* is one letter:
// `k` steps, with k chosen so that a run lasts milliseconds. A slow linear drift adds +d to the ratio of the pair (A1,
// B1) and -d to that of (B2, A2), so it cancels. Steps right after a switch are run but not counted:
//
//     A  | . B B | . A  A | . B B | . A        '.' = dropped step after a switch, k = 1, '|' = switch
//     a1     b1 b2   a2 a3    b3 b4   a4       pairs: (a1,b1) (a2,b2) (a3,b3) (a4,b4)
//
// If shapes change, a run is split by shape class, and a pair always consists of two runs of one class.
//
// Pairs of an earlier process count like new ones, because each pair was formed within one process: differences between
// processes (memory placement, other load) change both sides of a pair. They may also change the ratio. So earlier
// pairs count only as long as new pairs do not contradict them, and never alone (arms/judgement.h). Not thread-safe;
// owned by the Tuner.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/tune/measure/statistics.h"

namespace agspeed::runtime::tune {

enum class Side { kReference, kArm };

/// Two runs, one of each side, that are close in time. All values are seconds per step.
struct RunPair {
  double reference = 0;
  double arm = 0;
  double referenceMean = 0;
  double armMean = 0;

  double ratio() const { return arm / reference; }
};

class Comparison {
 public:
  /// Keeps the newest `maxPairs` pairs (a sliding window for the drift guard).
  explicit Comparison(size_t maxPairs = 100000) : maxPairs_(maxPairs) {}

  /// Adds one run of `side`: the seconds of its steps, by shape class.
  void addRun(Side side, const std::map<int32_t, std::vector<double>>& secondsByShape);
  /// Adds pairs that an earlier process measured. Requires: numPairs() == 0.
  void addEarlier(const std::vector<RunPair>& pairs);
  /// Forgets the pairs of an earlier process if new ones show another ratio: four or more new ones all lie beyond the
  /// middle 80 % of the earlier ones, or the 95 % intervals are disjoint. Returns whether it did.
  bool dropContradicted();
  void clear();

  int32_t numPairs() const { return static_cast<int32_t>(pairs_.size()); }
  int32_t numEarlier() const { return numEarlier_; }
  int32_t numOwn() const { return numPairs() - numEarlier_; }
  /// Returns the pairs, oldest first. Pairs of an earlier process come before all others.
  const std::deque<RunPair>& pairs() const { return pairs_; }
  /// Returns (step time of the arm) / (the reference's): the median of the pairs' ratios. Below 1: the arm is faster.
  Interval ratio(double confidence) const;
  /// Returns a quantile of the pairs' ratios. Requires: numPairs() > 0.
  double ratioQuantile(double fraction) const;
  /// Both return the evidence (signEvidence()) that the median ratio is below, or above, `limit`.
  double evidenceBelow(double limit) const;
  double evidenceAbove(double limit) const;
  /// Like ratio(), but from summed times. Unlike the median, the sum shows rare slow steps.
  Interval sumRatio(double confidence) const;

 private:
  struct Run {
    Side side;
    double typical;  ///< p25 of four or more steps, else their median; noise only makes steps longer
    double mean;
    int64_t order;
  };
  void addShape(int32_t shape, const Run& run);
  void addPair(const Run& reference, const Run& arm);
  std::vector<double> ratios() const;

  size_t maxPairs_;
  int64_t numRuns_ = 0;
  std::map<int32_t, std::deque<Run>> unpaired_;  ///< by shape; Invariant: all runs of one shape are of the same side
  std::deque<RunPair> pairs_;
  int32_t numEarlier_ = 0;
};

/// Describes a ratio of step times for users: how many times `whose` speed, the interval, and the number of pairs.
std::string describeSpeed(const Interval& ratio, std::string_view whose = "eager's");

class AbbaSchedule {
 public:
  /// Starts a block with A. `current`: the side that the process runs now; if it is A, no switch is needed.
  AbbaSchedule(int32_t runSteps, Side current);

  /// Returns the side that has to run the next step.
  Side next() const;
  /// Records a finished step. `counts`: false for disturbed steps. Adds completed runs to `comparison`.
  void addStep(Side ran, int32_t shape, double seconds, bool counts, Comparison& comparison);
  /// Makes at least the next `steps` steps not count.
  void settle(int32_t steps);

  bool isBlockDone() const { return position_ == kBlockRuns; }
  int32_t runSteps() const { return runSteps_; }
  /// Returns how many steps in a row ran another arm than the requested one.
  int32_t numMissed() const { return numMissed_; }

 private:
  static constexpr int32_t kBlockRuns = 4;
  void closeRun(Comparison& comparison);

  int32_t runSteps_;
  int32_t position_ = 0;
  int32_t numDropped_;  ///< steps still to drop before steps count
  int32_t numMissed_ = 0;
  int32_t numCollected_ = 0;
  std::map<int32_t, std::vector<double>> collected_;  ///< of the current run, by shape
};

/// Returns the number of steps with which a run lasts at least `minRunSeconds`, from 1 to `maxRunSteps`.
int32_t chooseRunSteps(double stepSeconds, double minRunSeconds, int32_t maxRunSteps);

}  // namespace agspeed::runtime::tune
