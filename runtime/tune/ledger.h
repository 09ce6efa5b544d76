// SPDX-License-Identifier: Apache-2.0
// Ledger: the cost of tuning, what it has saved, and how much may still be spent.
//
//   slow-down = foreground seconds + inflation of steps while compiling + steps of arms on trial slower than eager
//   allowance = min(cap, grant + 0.97 * fraction / searches * undisturbed)   (only the cap in max, deterministic)
//
// `cap` is budgetSeconds. `grant` is an initial budget, which only fast-start mode has. `searches` is the number of
// tuners that share the budget. `undisturbed` is the time trained without the parts that inflation and trials added.
// The fraction applies to this time, because a fraction of the slowed-down time would be a larger fraction of the time
// that training takes without agspeed.
//
// Until something is decided, the fraction is searchFraction, and afterwards the smaller budgetFraction. With a smaller
// searchFraction, eager would run for long before the first capture, and a large gain would come late. With a larger
// one, models that are fastest with eager would pay too much for the search. Saved time never increases the allowance.
// So training takes at most 1 + fraction times as long as with the best arm known, even after a good early decision.
// Not thread-safe; owned by the Tuner.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "runtime/tune/config.h"

namespace agspeed::runtime::tune {

class Ledger {
 public:
  explicit Ledger(const TunerConfig& config);

  /// Adds time spent before the first step. A grant grows by it, because the grant is meant for the time after the
  /// start.
  void addStartUp(double seconds);
  /// Records the first decision: from now on the fraction is budgetFraction.
  void endSearch() { fraction_ = budgetFraction_; }
  /// Sets how many tuners share the fraction: all that tune models of one training loop, including this one (>= 1).
  void shareAmong(int64_t numSearches) { numSearches_ = numSearches; }
  void addTrained(double seconds, int64_t numSteps);
  void addForeground(double seconds) { foregroundSeconds_ += seconds; }
  void addBackground(double seconds) { backgroundSeconds_ += seconds; }
  /// Adds (time of a step while a compile ran) - (its undisturbed time). Noise cancels, because the difference is
  /// signed; a negative sum counts as 0.
  void addInflation(double seconds) { inflationSeconds_ += seconds; }
  /// Adds (step time of `arm` on trial) - (eager's). The differences are summed per arm; a negative sum counts as 0.
  void addTrial(const std::string& arm, double seconds) { trialSeconds_[arm] += seconds; }
  /// Adds (eager's step time) - (the arm's) of one step, on trial or not. May be negative.
  void addSaved(double seconds) { savedSeconds_ += seconds; }

  double trainedSeconds() const { return trainedSeconds_; }
  int64_t numSteps() const { return numSteps_; }
  /// Returns the time since the start: steps and foreground work.
  double wallSeconds() const { return trainedSeconds_ + foregroundSeconds_; }
  double foregroundSeconds() const { return foregroundSeconds_; }
  double backgroundSeconds() const { return backgroundSeconds_; }
  double inflationSeconds() const { return inflationSeconds_ > 0 ? inflationSeconds_ : 0; }
  double trialSeconds() const;
  double savedSeconds() const { return savedSeconds_; }

  double slowdownSeconds() const { return foregroundSeconds() + inflationSeconds() + trialSeconds(); }
  double undisturbedSeconds() const { return trainedSeconds_ - inflationSeconds() - trialSeconds(); }
  double allowanceSeconds() const;
  /// Returns how much may still be spent. Negative if an action cost more than estimated.
  double leftSeconds() const { return allowanceSeconds() - slowdownSeconds(); }
  bool canAfford(double seconds) const { return seconds <= leftSeconds(); }
  /// Returns how long to train until `seconds` can be paid; infinite if training earns nothing.
  double earningSeconds(double seconds) const;
  bool isUnlimited() const { return isUnlimited_; }

 private:
  /// Returns the seconds of allowance per undisturbed second.
  double share() const;

  bool isUnlimited_;
  double grantSeconds_;
  double fraction_;
  double budgetFraction_;
  int64_t numSearches_ = 1;
  double capSeconds_;
  int64_t numSteps_ = 0;
  double trainedSeconds_ = 0;
  double foregroundSeconds_ = 0;
  double backgroundSeconds_ = 0;
  double inflationSeconds_ = 0;
  double savedSeconds_ = 0;
  std::map<std::string, double> trialSeconds_;
};

}  // namespace agspeed::runtime::tune
