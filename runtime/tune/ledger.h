// SPDX-License-Identifier: Apache-2.0
// Ledger: the cost of tuning, what it has saved, and how much may still be spent.
//
//   slow-down = foreground seconds + inflation of steps while compiling + steps of arms on trial slower than eager
//   allowance = min(cap, grant + 0.97 * fraction / searches * undisturbed)   (only the cap in max, deterministic)
//
// `undisturbed` is the time trained without the parts that inflation and trials added. A share of the slowed-down time
// would be a larger share of the time that training takes without agspeed.
//
// The fraction is the larger one, searchFraction, until something is decided. With a smaller one, eager would run so
// long before the first capture that a large gain is missed. With a larger one, a model that eager suits best would pay
// too much for the search. Savings are never credited: the allowance stays a share of the time trained, so the regret
// against the best arm known stays below 1 + fraction even after a good early decision. Not thread-safe; owned by the
// Tuner.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "runtime/tune/config.h"

namespace agspeed::runtime::tune {

class Ledger {
 public:
  explicit Ledger(const TunerConfig& config);

  /// Time spent before the first step. A grant grows by it, because the grant is meant for the time after the start.
  void addStartUp(double seconds);
  /// Something was decided: from now on only the smaller fraction may be spent.
  void endSearch() { fraction_ = budgetFraction_; }
  /// `numSearches` >= 1 tuners, including this one, tune models of one training loop and share the fraction.
  void shareAmong(int64_t numSearches) { numSearches_ = numSearches; }
  void addTrained(double seconds, int64_t numSteps);
  void addForeground(double seconds) { foregroundSeconds_ += seconds; }
  void addBackground(double seconds) { backgroundSeconds_ += seconds; }
  /// Signed difference between a step and its undisturbed time while a compile ran. Noise cancels; a negative sum
  /// counts as 0.
  void addInflation(double seconds) { inflationSeconds_ += seconds; }
  /// Signed difference between a step of `arm` on trial and eager. Summed per arm; a negative sum counts as 0.
  void addTrial(const std::string& arm, double seconds) { trialSeconds_[arm] += seconds; }
  /// Signed difference eager - arm of one step, on trial or not.
  void addSaved(double seconds) { savedSeconds_ += seconds; }

  double trainedSeconds() const { return trainedSeconds_; }
  int64_t numSteps() const { return numSteps_; }
  /// Time since the start: steps and foreground work.
  double wallSeconds() const { return trainedSeconds_ + foregroundSeconds_; }
  double foregroundSeconds() const { return foregroundSeconds_; }
  double backgroundSeconds() const { return backgroundSeconds_; }
  double inflationSeconds() const { return inflationSeconds_ > 0 ? inflationSeconds_ : 0; }
  double trialSeconds() const;
  double savedSeconds() const { return savedSeconds_; }

  double slowdownSeconds() const { return foregroundSeconds() + inflationSeconds() + trialSeconds(); }
  double undisturbedSeconds() const { return trainedSeconds_ - inflationSeconds() - trialSeconds(); }
  double allowanceSeconds() const;
  /// How much may still be spent; negative if an estimate was too low.
  double leftSeconds() const { return allowanceSeconds() - slowdownSeconds(); }
  bool canAfford(double seconds) const { return seconds <= leftSeconds(); }
  /// Seconds to train until `seconds` can be paid; infinite if training earns nothing.
  double earningSeconds(double seconds) const;
  bool isUnlimited() const { return isUnlimited_; }

 private:
  /// Seconds earned per second trained.
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
