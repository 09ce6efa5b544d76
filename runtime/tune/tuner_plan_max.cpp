// SPDX-License-Identifier: Apache-2.0
// What the Tuner wants next in max mode, and how training and a compile share a machine while somebody waits for it.
//
// The longest work, a compile in the background, starts first. Beside it what needs no background is loaded and what is
// ready is measured; the best arm proven so far runs the steps. A compile disturbs steps two- or threefold and by
// chance, so it stands still during a block, for a bounded number of blocks per arm.
//
// Without cores to spare, steps and a compile in each other's way are slower than one after the other: they take turns.
// What needs no background waits for the first compile and the blocks of what it made: training has few steps until
// then which could gain by it, and a load delays the compile.
//
//   compile   #####.......#####...#####..      '#' runs, '.' stands still
//   training       |||||||     |||     ||      '|' one step; gaps last maxPauseSeconds at most
//
// The first turn is training's where an arm is proven by then and the compile will take more than one. What needs no
// background also waits for some steps of the first compiled arm that is proven.
#include <algorithm>
#include <limits>

#include "runtime/tune/tuner.h"

namespace agspeed::runtime::tune {
namespace {

constexpr int32_t kBlocksBeside = 6;  ///< of one arm, for which a compile stands still; the others come afterwards
constexpr double kRestedShare = 0.5;  ///< of a pause: after more of it a step runs before anything is loaded
constexpr double kFirstTurn = 0.1;    ///< training's turn, in pauses, while it may gain much by what is compiled
constexpr double kLaterTurn = 1.0;    ///< the same where an arm of that kind is there already
constexpr double kFirstSteps = 64;    ///< of the first compiled arm that is proven, unless they take a pause or more
constexpr size_t kPlainSteps = 64;    ///< of the arm that stays, before a large gain is believed
constexpr double kLargeGain = 0.05;   ///< confirmed by plain steps; smaller ones by pairs

}  // namespace

void Tuner::planMax() {
  want(incumbent_);
  const std::optional<size_t> compiling = firstArm([](const Arm& arm) { return arm.state == ArmState::kCompiling; });
  if (!compiling && startNextCompile()) return;
  if (const std::optional<size_t> arm = nextToLoad(compiling.has_value())) {
    if (isQuick(arms_[*arm]) && ledger_.numSteps() < firstStepsEndAt_) return;
    if (!isRested()) return compiling ? planTurn(*compiling) : void();
    // Beside a compile a load takes several times as long. One that stands still may hold the lock of a cache that
    // another arm compiled in the background needs.
    const bool mayWait = !arms_[*arm].needsBackground() && takesTurns();
    if (compiling) setCompileLevel(*compiling, mayWait ? Level::kSuspended : Level::kRaised);
    return advanceArm(*arm);
  }
  if (compiling) {
    if (!planBlockBeside(*compiling)) planTurn(*compiling);
    return;
  }
  if (planBlock()) return;
  if (const auto last = firstArm([](const Arm& arm) { return arm.isWaiting(); })) {
    return advanceArm(*last);
  }
  planDecision();
}

/// Starts the next background compile where it would not delay what is nearly known; returns true when training has
/// nothing to do meanwhile.
bool Tuner::startNextCompile() {
  const bool isBusy = isMeasuringBeside() || std::any_of(arms_.begin(), arms_.end(), [this](const Arm& arm) {
                        return arm.isLoadable() || (isFirstCompileOver() && isQuick(arm));
                      });
  if (isBusy && !config_.hasSpareCores) return false;
  const auto next =
      firstArm([](const Arm& arm) { return arm.isWaiting() && arm.needsBackground() && arm.spec.standsInFor.empty(); });
  if (!next) return false;
  const Level level = takesTurns() ? Level::kSuspended : Level::kRaised;  // its first turn comes after a step
  proposals_.push_back({ActionKind::kCompile, arms_[*next].spec.name, level, 0, {}});
  return !nextToLoad(/*isCompiling=*/true);
}

/// What is compiled, or else needs no background for that.
std::optional<size_t> Tuner::nextToLoad(bool isCompiling) const {
  if (const auto compiled = firstArm([](const Arm& arm) { return arm.isLoadable(); })) return compiled;
  const bool isDelaying = isMeasuringBeside() || (isCompiling && !isFirstCompileOver());
  if (isDelaying && !config_.hasSpareCores && !cached_) return {};
  return firstArm(isQuick);
}

/// Whether an arm has blocks to come that go before other work.
bool Tuner::isMeasuringBeside() const {
  return std::any_of(arms_.begin(), arms_.end(),
                     [](const Arm& arm) { return arm.isMeasurable() && arm.numBlocks < kBlocksBeside; });
}

bool Tuner::isQuick(const Arm& arm) {
  return arm.isWaiting() && !arm.needsBackground() && arm.spec.standsInFor.empty();
}

/// Whether an arm that needs the background is through with it, well or not.
bool Tuner::isFirstCompileOver() const {
  return std::any_of(arms_.begin(), arms_.end(), [](const Arm& arm) {
    return arm.needsBackground() && !arm.isWaiting() && arm.state != ArmState::kCompiling;
  });
}

/// Measures what is ready while the compile of `compiling` stands still. Returns false when there is nothing to measure
/// now.
bool Tuner::planBlockBeside(size_t compiling) {
  const std::optional<size_t> arm = leastMeasured();
  if (!arm) nextChallenger();  // the better of the accepted arms runs on, where their pairs say which that is
  if (!arm || arms_[*arm].numBlocks >= kBlocksBeside) {
    want(incumbent_);
    return false;
  }
  const bool wasRunning = setCompileLevel(compiling, Level::kSuspended);
  planBlock();
  if (wasRunning && trial_) trial_->schedule.settle(1 + config_.maxLateSteps);
  return true;
}

/// The compile of `arm` and the steps of the arm in force go on, beside each other or in turns.
void Tuner::planTurn(size_t arm) {
  const bool isTrainingsTurn = ledger_.trainedSeconds() < turnEndsAt_ || !isRested();
  setCompileLevel(arm, takesTurns() && isTrainingsTurn ? Level::kSuspended : Level::kRaised);
  if (takesTurns() && !isTrainingsTurn) proposeWait(arm, config_.maxPauseSeconds);
}

/// Whether steps and a compile run one after the other.
bool Tuner::takesTurns() const { return !config_.hasSpareCores || cached_; }

void Tuner::proposeWait(size_t arm, double seconds) {
  proposals_.push_back({ActionKind::kWait, arms_[arm].spec.name, Level::kRaised, seconds, {}});
}

/// Training's turn begins now, or when the pause that starts now is over; it is one step where the database knows the
/// outcome.
void Tuner::beginTurn() {
  const bool isLater =
      std::any_of(arms_.begin(), arms_.end(), [](const Arm& arm) { return arm.isUsable() && arm.needsBackground(); });
  const double share = cached_ ? 0 : (isLater ? kLaterTurn : kFirstTurn);
  turnEndsAt_ = ledger_.trainedSeconds() + share * config_.maxPauseSeconds;
}

/// The first arm that was compiled in the background is proven: training gains by it before anything is loaded.
void Tuner::beginFirstSteps(const Arm& arm) {
  if (config_.mode != Mode::kMax || !takesTurns() || firstStepsEndAt_ > 0) return;
  const double numSteps = std::min(kFirstSteps, config_.maxPauseSeconds / arm.seconds.median());
  firstStepsEndAt_ = ledger_.numSteps() + static_cast<int64_t>(numSteps);
}

/// Returns true when that changes anything.
bool Tuner::setCompileLevel(size_t arm, Level level) {
  if (compileLevel_ == level) return false;
  const double seconds = level == Level::kRaised ? std::numeric_limits<double>::infinity() : 0;
  proposals_.push_back({ActionKind::kPriority, arms_[arm].spec.name, level, seconds,
                        level == Level::kRaised ? "training has had its turn" : "steps have their turn"});
  return true;
}

/// False when training has stood still for so long that a step is due first.
bool Tuner::isRested() const {
  return ledger_.foregroundSeconds() - foregroundAtStep_ <= kRestedShare * config_.maxPauseSeconds;
}

/// In max mode the arm that stays is looked at once more before the decision: rare slow steps need many steps to be
/// seen. Where the gain is large the arm shows them in plain steps, at its own speed; a small gain needs pairs.
bool Tuner::planConfirmation() {
  Arm& arm = arms_[incumbent_];
  if (incumbent_ == kEager || arm.isConfirmed) return false;
  if (isClearGain(arm, kLargeGain)) {
    if (arm.seconds.size() < kPlainSteps) {
      want(incumbent_);
      return true;
    }
    arm.isConfirmed = !hasSlowSteps(arm);
    if (arm.isConfirmed) return false;
  }
  startBlock(TrialKind::kVersusEager, incumbent_, kEager);
  return true;
}

}  // namespace agspeed::runtime::tune
