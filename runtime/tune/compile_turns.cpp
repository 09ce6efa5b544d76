// SPDX-License-Identifier: Apache-2.0
#include "runtime/tune/compile_turns.h"

#include <algorithm>
#include <limits>

namespace agspeed::runtime::tune {
namespace {

constexpr double kRaisedShare = 0.6;      ///< slow-down per second of a raised compile: steps take 2.5 times as long
constexpr double kMinRaiseSeconds = 0.5;  ///< a shorter time at normal priority is not worth a system call
constexpr double kMaxRaiseSeconds = 30.0;
constexpr double kResumeShare = 0.02;  ///< a suspended compile resumes when this share of the allowance is free again
constexpr int32_t kBlocksBeside = 6;   ///< number of blocks of one arm for which a compile is suspended
constexpr double kRestedShare = 0.5;   ///< after this share of maxPauseSeconds, a step runs before the next load
constexpr double kFirstTurn = 0.1;     ///< training's turn / maxPauseSeconds, while the compile may bring a large gain
constexpr double kLaterTurn = 1.0;     ///< the same, if an arm that was compiled in the background is ready
constexpr double kFirstSteps = 64;     ///< steps of the first proven arm; fewer if they take maxPauseSeconds

}  // namespace

// --- events ---------------------------------------------------------------------------------------------------------

void CompileTurns::begin(size_t arm, Level level) {
  if (arms_[arm].needsBackground()) level_ = level;
  // The proven arm runs first, unless the compile is expected to fit into one pause.
  if (arms_.hasProven() && arms_[arm].spec.compileSeconds > config_.maxPauseSeconds) beginTurn();
}

void CompileTurns::change(const Action& action) {
  level_ = action.level;
  raisedUntil_ = ledger_.wallSeconds() + action.seconds;
}

void CompileTurns::beginTurn() {
  const bool isLater = arms_.first([](const Arm& arm) { return arm.isUsable() && arm.needsBackground(); }).has_value();
  const double share = arms_.stored() ? 0 : (isLater ? kLaterTurn : kFirstTurn);
  turnEndsAt_ = ledger_.trainedSeconds() + share * config_.maxPauseSeconds;
}

void CompileTurns::armProven(const Arm& arm) {
  if (!arm.needsBackground() || config_.mode != Mode::kMax || !isAlternating() || firstStepsEndAt_ > 0) return;
  const double numSteps = std::min(kFirstSteps, config_.maxPauseSeconds / arm.seconds.median());
  firstStepsEndAt_ = ledger_.numSteps() + static_cast<int64_t>(numSteps);
}

// --- queries --------------------------------------------------------------------------------------------------------

bool CompileTurns::isRested() const {
  return ledger_.foregroundSeconds() - foregroundAtStep_ <= kRestedShare * config_.maxPauseSeconds;
}

bool CompileTurns::hasBlocksLeft() const {
  const std::optional<size_t> arm = arms_.leastMeasured();
  return arm && arms_[*arm].numBlocks < kBlocksBeside;
}

double CompileTurns::resumeSeconds() const { return kResumeShare * ledger_.allowanceSeconds(); }

/// Whether the compile of an arm with background work has ended, successfully or not.
bool CompileTurns::isFirstCompileOver() const {
  const auto isOver = [](const Arm& arm) {
    return arm.needsBackground() && !arm.isWaiting() && arm.state != ArmState::kCompiling;
  };
  return arms_.first(isOver).has_value();
}

// --- plans ----------------------------------------------------------------------------------------------------------

std::optional<size_t> CompileTurns::nextCompile() const {
  const bool isLoading = arms_.first([](const Arm& arm) { return arm.isLoadable(); }).has_value();
  const bool isQuickNext = isFirstCompileOver() && arms_.first([](const Arm& arm) { return arm.isQuick(); });
  if (!config_.hasSpareCores && (hasBlocksLeft() || isLoading || isQuickNext)) return std::nullopt;
  return arms_.first(
      [](const Arm& arm) { return arm.isWaiting() && arm.needsBackground() && arm.spec.standsInFor.empty(); });
}

std::optional<size_t> CompileTurns::nextLoad(bool isCompiling) const {
  if (const auto compiled = arms_.first([](const Arm& arm) { return arm.isLoadable(); })) return compiled;
  const bool isDelaying = hasBlocksLeft() || (isCompiling && !isFirstCompileOver());
  if (isDelaying && !config_.hasSpareCores && !arms_.stored()) return std::nullopt;
  return arms_.first([](const Arm& arm) { return arm.isQuick(); });
}

std::optional<Action> CompileTurns::setLevel(size_t arm, Level level) const {
  if (level_ == level) return std::nullopt;
  const bool isRaised = level == Level::kRaised;
  const double seconds = isRaised ? std::numeric_limits<double>::infinity() : 0;
  return Action{ActionKind::kPriority, arms_[arm].spec.name, level, seconds,
                isRaised ? "training has had its turn" : "training has its turn"};
}

std::optional<Action> CompileTurns::planBudgeted(size_t arm) const {
  const auto ask = [&](Level level, double seconds, const char* reason) {
    return Action{ActionKind::kPriority, arms_[arm].spec.name, level, seconds, reason};
  };
  const double left = ledger_.leftSeconds();
  if (level_ == Level::kSuspended) {
    if (left <= resumeSeconds()) return std::nullopt;
    return ask(Level::kIdle, 0, "the budget has recovered");
  }
  if (left <= 0) return ask(Level::kSuspended, 0, "the budget is spent");
  if (ledger_.wallSeconds() < raisedUntil_) return std::nullopt;
  const double seconds = std::min(kMaxRaiseSeconds, (left - arms_[arm].spec.foregroundSeconds) / kRaisedShare);
  if (seconds >= kMinRaiseSeconds) return ask(Level::kRaised, seconds, "paid from the earned budget");
  if (level_ != Level::kRaised) return std::nullopt;
  return ask(Level::kIdle, 0, "the earned budget is spent");
}

std::vector<Action> CompileTurns::planTurn(size_t arm) const {
  const bool isTrainingsTurn = ledger_.trainedSeconds() < turnEndsAt_ || !isRested();
  std::vector<Action> actions;
  if (auto action = setLevel(arm, isAlternating() && isTrainingsTurn ? Level::kSuspended : Level::kRaised)) {
    actions.push_back(*std::move(action));
  }
  if (isAlternating() && !isTrainingsTurn) actions.push_back(wait(arm, config_.maxPauseSeconds));
  return actions;
}

Action CompileTurns::wait(size_t arm, double seconds) const {
  return {ActionKind::kWait, arms_[arm].spec.name, Level::kRaised, seconds, {}};
}

}  // namespace agspeed::runtime::tune
