// SPDX-License-Identifier: Apache-2.0
#include "runtime/tune/ledger.h"

#include <algorithm>
#include <limits>

namespace agspeed::runtime::tune {
namespace {

/// Only this share of the allowance is used. The rest is a reserve, because costs are known one step late and estimates
/// may be too low.
constexpr double kUsableShare = 0.97;

}  // namespace

Ledger::Ledger(const TunerConfig& config)
    : isUnlimited_(config.mode == Mode::kMax || config.mode == Mode::kDeterministic),
      // Fast start pays for its quick capture and quick compiles before training has earned anything.
      grantSeconds_(config.mode == Mode::kFastStart ? 2 * config.fastStartSeconds : 0),
      fraction_(config.searchFraction),
      budgetFraction_(config.budgetFraction),
      capSeconds_(config.budgetSeconds) {}

void Ledger::addStartUp(double seconds) {
  addForeground(seconds);
  if (grantSeconds_ > 0) grantSeconds_ += seconds;
}

void Ledger::addTrained(double seconds, int64_t numSteps) {
  trainedSeconds_ += seconds;
  numSteps_ += numSteps;
}

double Ledger::trialSeconds() const {
  double sum = 0;
  for (const auto& [arm, seconds] : trialSeconds_) sum += std::max(0.0, seconds);
  return sum;
}

double Ledger::allowanceSeconds() const {
  if (isUnlimited_) return capSeconds_;
  return std::min(capSeconds_, grantSeconds_ + share() * undisturbedSeconds());
}

double Ledger::share() const { return kUsableShare * fraction_ / static_cast<double>(numSearches_); }

double Ledger::earningSeconds(double seconds) const {
  const double missing = seconds - leftSeconds();
  if (missing <= 0) return 0;
  return share() > 0 ? missing / share() : std::numeric_limits<double>::infinity();
}

}  // namespace agspeed::runtime::tune
