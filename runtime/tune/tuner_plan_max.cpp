// SPDX-License-Identifier: Apache-2.0
// Plans the next actions in max mode: how training and a compile share a machine while the user waits for the compile.
//
// The longest work, a compile in the background, starts first. Beside it the tuner loads arms that need no background
// work and measures arms that are ready. The best arm proven so far runs the steps. A compile slows steps down two- or
// threefold and irregularly, so it is suspended during a block, for a bounded number of blocks per arm.
//
// Without cores to spare, steps and a compile side by side are slower than one after the other, so they take turns.
// Arms without background work wait for the first compile and its blocks. Until then training has few steps that could
// gain by them, and a load would delay the compile.
//
//   compile   #####.......#####...#####..      '#' runs, '.' is suspended
//   training       |||||||     |||     ||      '|' one step; gaps last maxPauseSeconds at most
//
// Training has the first turn if an arm is proven by then and the compile will take more than one turn. Arms without
// background work also wait for some steps of the first compiled arm that is proven.
#include <algorithm>
#include <limits>

#include "runtime/tune/tuner.h"

namespace agspeed::runtime::tune {
namespace {

constexpr int32_t kBlocksBeside = 6;  ///< blocks of one arm for which a compile is suspended; later blocks wait for the
                                      ///< end of the compile
constexpr double kRestedShare = 0.5;  ///< share of a pause after which a step runs before a load
constexpr double kFirstTurn = 0.1;    ///< training's turn, in pauses, while the compile may bring a large gain
constexpr double kLaterTurn = 1.0;    ///< the same if an arm of that kind is ready already
constexpr double kFirstSteps = 64;    ///< steps of the first proven compiled arm, or fewer if they fill a pause
constexpr size_t kPlainSteps = 64;    ///< steps of the chosen arm before a large gain is believed
constexpr double kLargeGain = 0.05;   ///< gains above this are confirmed by plain steps, smaller ones by pairs

}  // namespace

void Tuner::planMax() {
  want(incumbent_);
  const std::optional<size_t> compiling = firstArm([](const Arm& arm) { return arm.state == ArmState::kCompiling; });
  if (!compiling && startNextCompile()) return;
  if (const std::optional<size_t> arm = nextToLoad(compiling.has_value())) {
    if (isQuick(arms_[*arm]) && ledger_.numSteps() < firstStepsEndAt_) return;
    if (!isRested()) return compiling ? planTurn(*compiling) : void();
    // Beside a compile a load takes several times as long. But a suspended compile may hold the lock of a cache that
    // another arm with background work needs.
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

/// Starts the next background compile if it does not delay results that are nearly known. Returns whether training has
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

/// A compiled arm, or else one that needs no background work.
std::optional<size_t> Tuner::nextToLoad(bool isCompiling) const {
  if (const auto compiled = firstArm([](const Arm& arm) { return arm.isLoadable(); })) return compiled;
  const bool isDelaying = isMeasuringBeside() || (isCompiling && !isFirstCompileOver());
  if (isDelaying && !config_.hasSpareCores && !cached_) return {};
  return firstArm(isQuick);
}

/// Whether an arm has blocks left that come before other work.
bool Tuner::isMeasuringBeside() const {
  return std::any_of(arms_.begin(), arms_.end(),
                     [](const Arm& arm) { return arm.isMeasurable() && arm.numBlocks < kBlocksBeside; });
}

bool Tuner::isQuick(const Arm& arm) {
  return arm.isWaiting() && !arm.needsBackground() && arm.spec.standsInFor.empty();
}

/// Whether the compile of an arm with background work has ended, successfully or not.
bool Tuner::isFirstCompileOver() const {
  return std::any_of(arms_.begin(), arms_.end(), [](const Arm& arm) {
    return arm.needsBackground() && !arm.isWaiting() && arm.state != ArmState::kCompiling;
  });
}

/// Measures a ready arm while the compile of `compiling` is suspended. Returns false if there is nothing to measure
/// now.
bool Tuner::planBlockBeside(size_t compiling) {
  const std::optional<size_t> arm = leastMeasured();
  if (!arm) nextChallenger();  // the better of the accepted arms runs, if their pairs show which it is
  if (!arm || arms_[*arm].numBlocks >= kBlocksBeside) {
    want(incumbent_);
    return false;
  }
  const bool wasRunning = setCompileLevel(compiling, Level::kSuspended);
  planBlock();
  if (wasRunning && trial_) trial_->schedule.settle(1 + config_.maxLateSteps);
  return true;
}

/// Lets the compile of `arm` and the steps of the current arm continue, side by side or in turns.
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

/// Training's turn begins now, or after the pause that starts now. It is one step if the database knows the outcome.
void Tuner::beginTurn() {
  const bool isLater =
      std::any_of(arms_.begin(), arms_.end(), [](const Arm& arm) { return arm.isUsable() && arm.needsBackground(); });
  const double share = cached_ ? 0 : (isLater ? kLaterTurn : kFirstTurn);
  turnEndsAt_ = ledger_.trainedSeconds() + share * config_.maxPauseSeconds;
}

/// The first arm compiled in the background is proven: training gains by it before anything else is loaded.
void Tuner::beginFirstSteps(const Arm& arm) {
  if (config_.mode != Mode::kMax || !takesTurns() || firstStepsEndAt_ > 0) return;
  const double numSteps = std::min(kFirstSteps, config_.maxPauseSeconds / arm.seconds.median());
  firstStepsEndAt_ = ledger_.numSteps() + static_cast<int64_t>(numSteps);
}

/// Returns whether the level changes.
bool Tuner::setCompileLevel(size_t arm, Level level) {
  if (compileLevel_ == level) return false;
  const double seconds = level == Level::kRaised ? std::numeric_limits<double>::infinity() : 0;
  proposals_.push_back({ActionKind::kPriority, arms_[arm].spec.name, level, seconds,
                        level == Level::kRaised ? "training has had its turn" : "steps have their turn"});
  return true;
}

/// Whether training has paused so little that no step is due first.
bool Tuner::isRested() const {
  return ledger_.foregroundSeconds() - foregroundAtStep_ <= kRestedShare * config_.maxPauseSeconds;
}

/// In max mode the chosen arm is checked once more before the decision, because rare slow steps show only in many
/// steps. If the gain is large, plain steps at the arm's own speed show them; a small gain needs pairs.
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
