// SPDX-License-Identifier: Apache-2.0
// Plans the next actions in max mode, in which the user waits for compiles (see compile_turns.h).
//
// The longest work, a compile in the background, starts first. During a compile, the tuner loads arms that need no
// background work and measures arms that are ready. The best arm proven so far runs the steps. A compile slows steps
// down two- or threefold and irregularly, so it is suspended during a block, for a bounded number of blocks per arm.
#include <algorithm>
#include <limits>

#include "runtime/tune/arms/judgement.h"
#include "runtime/tune/tuner.h"

namespace agspeed::runtime::tune {
namespace {

constexpr size_t kPlainSteps = 64;   ///< steps of the chosen arm that confirm a large gain
constexpr double kLargeGain = 0.05;  ///< gains above this are confirmed by plain steps, smaller ones by pairs

}  // namespace

void Tuner::planMax() {
  want(arms_.incumbent());
  const std::optional<size_t> compiling = arms_.first([](const Arm& arm) { return arm.state == ArmState::kCompiling; });
  if (!compiling && startNextCompile()) return;
  if (const std::optional<size_t> arm = turns_.nextLoad(compiling.has_value())) {
    if (arms_[*arm].isQuick() && turns_.hasFirstSteps()) return;
    if (!turns_.isRested()) return compiling ? planTurn(*compiling) : void();
    // During a compile, a load takes several times as long, so the compile is suspended for it. But a suspended compile
    // may hold the lock of a cache that an arm with background work needs.
    const bool mayWait = !arms_[*arm].needsBackground() && turns_.isAlternating();
    if (compiling) propose(turns_.setLevel(*compiling, mayWait ? Level::kSuspended : Level::kRaised));
    return advanceArm(*arm);
  }
  if (compiling) {
    if (!planBlockBeside(*compiling)) planTurn(*compiling);
    return;
  }
  if (planBlock()) return;
  if (const auto last = arms_.first([](const Arm& arm) { return arm.isWaiting(); })) {
    return advanceArm(*last);
  }
  planDecision();
}

/// Starts the next compile, if any. Returns true if one starts and there is no arm to load meanwhile.
bool Tuner::startNextCompile() {
  const std::optional<size_t> next = turns_.nextCompile();
  if (!next) return false;
  const Level level = turns_.isAlternating() ? Level::kSuspended : Level::kRaised;  // its first turn follows a step
  proposals_.push_back({ActionKind::kCompile, arms_[*next].spec.name, level, 0, {}});
  return !turns_.nextLoad(/*isCompiling=*/true);
}

/// Measures a ready arm while the compile of `compiling` is suspended. Returns false if there is nothing to measure
/// now.
bool Tuner::planBlockBeside(size_t compiling) {
  if (!turns_.hasBlocksLeft()) {
    // The better of the accepted arms runs, if their pairs show which it is.
    if (!arms_.leastMeasured()) arms_.nextChallenger(config_);
    want(arms_.incumbent());
    return false;
  }
  const bool wasRunning = propose(turns_.setLevel(compiling, Level::kSuspended));
  planBlock();
  if (wasRunning && trial_) trial_->schedule.settle(1 + config_.maxLateSteps);
  return true;
}

void Tuner::planTurn(size_t arm) {
  for (Action& action : turns_.planTurn(arm)) proposals_.push_back(std::move(action));
}

/// In max mode the chosen arm is checked once more before the decision, because rare slow steps show only in many
/// steps. If the gain is large, plain steps at the arm's own speed show them; a small gain needs pairs.
bool Tuner::planConfirmation() {
  Arm& arm = arms_[arms_.incumbent()];
  if (!arms_.hasProven() || arm.isConfirmed) return false;
  if (isClearGain(arm, kLargeGain)) {
    if (arm.seconds.size() < kPlainSteps) {
      want(arms_.incumbent());
      return true;
    }
    arm.isConfirmed = !hasSlowSteps(arm, arms_.eager());
    if (arm.isConfirmed) return false;
  }
  startBlock(TrialKind::kVersusEager, arms_.incumbent(), kEager);
  return true;
}

}  // namespace agspeed::runtime::tune
