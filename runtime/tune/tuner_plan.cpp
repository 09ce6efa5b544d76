// SPDX-License-Identifier: Apache-2.0
// Plans the next actions of the Tuner. One call of plan() fills proposals_ and changes little else.
//
// The order while tuning: foreground work (load), measuring arms that are ready, the next background compile, the
// decision. Each waits until the ledger can pay for it. Max mode does not ask the ledger: see tuner_plan_max.cpp.
#include <algorithm>
#include <cmath>
#include <limits>

#include "runtime/base/format.h"
#include "runtime/tune/tuner.h"

namespace agspeed::runtime::tune {
namespace {

constexpr double kRaisedShare = 0.6;      ///< slow-down per second of a raised compile: steps take 2.5 times as long
constexpr double kMinRaiseSeconds = 0.5;  ///< shorter bursts of priority are not worth a system call
constexpr double kMaxRaiseSeconds = 30.0;
constexpr size_t kMaxShapesInRun = 16;   ///< with more shapes, enough of them match by chance
constexpr size_t kMinEagerSteps = 3;     ///< eager steps before the first block, to know the length of a step
constexpr double kUnseenRatio = 10.0;    ///< an arm that never ran is assumed to be this many times slower than eager
constexpr double kResumeShare = 0.02;    ///< a suspended compile resumes when this share of the allowance is free again
constexpr double kQuietSeconds = 0.01;   ///< distance of samples of short steps while a compile runs
constexpr int64_t kQuietSamples = 16;    ///< the same, in steps at most
constexpr int64_t kLongestQuiet = 1000;  ///< limits how old the reported state may be
constexpr size_t kKnownSteps = 64;       ///< with this many steps eager is known well enough to skip reports

}  // namespace

void Tuner::plan() {
  if (rollbackRequest_) {
    propose(ActionKind::kRollback, incumbent_, *rollbackRequest_);
    return want(kEager);
  }
  if (trial_ && trial_->schedule.isBlockDone()) finishBlock();
  switch (phase_) {
    case Phase::kObserving: return planObserving();
    case Phase::kCapturing: return want(kEager);
    case Phase::kTuning: return planTuning();
    case Phase::kSettled: return planSettled();
  }
}

void Tuner::planObserving() {
  want(kEager);
  if (cached_ == kEager)
    return propose(ActionKind::kDecide, kEager, "the tuning database says eager is the best choice");
  const bool hasWork = std::any_of(arms_.begin() + 1, arms_.end(), [](const Arm& arm) { return !arm.isDead(); });
  if (!hasWork) return propose(ActionKind::kDecide, kEager, describeEager());
  if (cached_ && arms_[*cached_].isUsable()) return planCached();  // it needs no graph
  if (cached_) return propose(ActionKind::kCapture, kEager, "for the decision in the tuning database");
  if (isIncomparable()) return planDecision();
  if (ledger_.isUnlimited()) return propose(ActionKind::kCapture, kEager);
  const double cost = config_.captureSeconds;
  if (config_.mode == Mode::kFastStart && cost > config_.fastStartSeconds) {
    return propose(ActionKind::kDecide, kEager, "the capture takes longer than fast-start allows");
  }
  const auto numSeen = static_cast<int32_t>(arms_[kEager].seconds.size());
  if (numSeen >= config_.warmupSteps && ledger_.canAfford(cost)) propose(ActionKind::kCapture, kEager);
}

void Tuner::planTuning() {
  if (trial_ && !isTrialAffordable()) trial_.reset();
  if (trial_) return want(trial_->schedule.next() == Side::kArm ? trial_->arm : trial_->reference);
  if (cached_) return planCached();
  if (config_.mode == Mode::kDeterministic) return planDeterministic();
  if (isIncomparable()) return planDecision();
  skipNeedless();
  if (config_.mode == Mode::kMax) return planMax();
  if (planLoad() || planBlock()) return;
  want(incumbent_);
  if (!planCompile()) planDecision();
}

/// Compiles, loads and chooses the database's arm without asking the ledger, because its gain is known.
void Tuner::planCached() {
  want(kEager);
  if (!arms_[*cached_].isUsable()) return advanceArm(*cached_);
  want(*cached_);
  propose(ActionKind::kDecide, *cached_, "an earlier run decided so (tuning database)");
}

void Tuner::planDeterministic() {
  want(incumbent_);
  for (size_t arm = 1; arm < arms_.size(); ++arm) {
    const bool isAllowed = config_.pinnedArm.empty() || config_.pinnedArm == arms_[arm].spec.name;
    if (arms_[arm].isDead() || arms_[arm].verdict == Verdict::kLost || !isAllowed) continue;
    if (!arms_[arm].isUsable()) return advanceArm(arm);
    want(arm);
    return propose(ActionKind::kDecide, arm,
                   config_.pinnedArm.empty() ? "the first candidate of the fixed order that passed the gate"
                                             : "the plan that is replayed asks for it");
  }
  if (config_.pinnedArm.empty()) return propose(ActionKind::kDecide, kEager, describeEager());
  propose(ActionKind::kDecide, kEager,
          config_.pinnedArm == arms_[kEager].spec.name
              ? "the plan that is replayed asks for it"
              : "the plan that is replayed, " + config_.pinnedArm + ", could not be used; see its reason");
}

/// Proposes the next action that brings an arm closer to ready while training waits for it.
void Tuner::advanceArm(size_t arm) {
  const bool isPatient = config_.mode == Mode::kDeterministic;
  const double pause = isPatient ? std::numeric_limits<double>::infinity() : config_.maxPauseSeconds;
  switch (arms_[arm].state) {
    case ArmState::kWaiting:
      proposals_.push_back({ActionKind::kCompile, arms_[arm].spec.name, Level::kRaised, 0, {}});
      if (isPatient || cached_) proposeWait(arm, pause);
      return;
    case ArmState::kCompiling: return isPatient ? proposeWait(arm, pause) : planTurn(arm);
    case ArmState::kCompiled:
    case ArmState::kLoading:
      if (isPatient || isRested())
        proposals_.push_back({ActionKind::kLoad, arms_[arm].spec.name, Level::kRaised, pause, {}});
      return;
    default: return;
  }
}

/// Skips arms that the cap of the whole run cannot pay for any more. Also skips stand-ins of an arm that is ready, once
/// any arm is faster than eager.
void Tuner::skipNeedless() {
  for (Arm& arm : arms_) {
    if (arm.verdict == Verdict::kLost || (arm.state != ArmState::kWaiting && arm.state != ArmState::kCompiled))
      continue;
    const double cost = arm.spec.foregroundSeconds + (config_.mode == Mode::kMax ? arm.spec.compileSeconds : 0);
    const std::optional<size_t> better = findArm(arm.spec.standsInFor);
    if (ledger_.slowdownSeconds() + cost > config_.budgetSeconds) {
      arm.reason = formatText("the tuning budget of {} s does not allow it", config_.budgetSeconds);
    } else if (incumbent_ != kEager && better && arms_[*better].isUsable()) {
      arm.reason = "not needed: " + arm.spec.standsInFor + ", which does the same work with less overhead, is ready";
    } else {
      continue;
    }
    arm.state = ArmState::kSkipped;
  }
}

/// Loads a compiled arm that the ledger can pay for. Returns false if there is none.
bool Tuner::planLoad() {
  const auto arm =
      firstArm([this](const Arm& arm) { return arm.isLoadable() && ledger_.canAfford(arm.spec.foregroundSeconds); });
  if (!arm) return false;
  want(incumbent_);
  advanceArm(*arm);
  return true;
}

/// Starts the next block: of the arm with the fewest blocks, of a duel, or to confirm the winner. Returns false if
/// there is none that the ledger can pay for.
bool Tuner::planBlock() {
  if (const std::optional<size_t> arm = leastMeasured()) {
    if (arms_[kEager].seconds.size() < kMinEagerSteps) {
      want(kEager);
      return true;
    }
    if (!isBlockAffordable(*arm)) return false;
    startBlock(TrialKind::kVersusEager, *arm, kEager);
    return true;
  }
  if (const std::optional<size_t> challenger = nextChallenger()) {
    startBlock(TrialKind::kDuel, *challenger, incumbent_);
    return true;
  }
  return planConfirmation();
}

std::optional<size_t> Tuner::leastMeasured() const {
  std::optional<size_t> least;
  for (size_t i = 1; i < arms_.size(); ++i) {
    if (arms_[i].isMeasurable() && (!least || arms_[i].numBlocks < arms_[*least].numBlocks)) least = i;
  }
  return least;
}

/// Compiles one arm at a time, in order. Returns true while there is something to compile, to load or to measure.
bool Tuner::planCompile() {
  for (size_t arm = 1; arm < arms_.size(); ++arm) {
    if (arms_[arm].state == ArmState::kCompiling) {
      planPriority(arm);
      return true;
    }
    if (arms_[arm].isLoadable()) return true;
  }
  // A compile disturbs measuring, so ready arms are measured first, even if the ledger has to earn that.
  const bool isMeasuring = std::any_of(arms_.begin(), arms_.end(), [](const Arm& arm) { return arm.isMeasurable(); });
  for (size_t arm = 1; arm < arms_.size() && !isMeasuring; ++arm) {
    if (!arms_[arm].isWaiting()) continue;
    if (ledger_.leftSeconds() > 0)
      proposals_.push_back({ActionKind::kCompile, arms_[arm].spec.name, Level::kIdle, 0, {}});
    return true;
  }
  return isMeasuring;
}

/// Idle by default. Suspended when the allowance is spent. Raised for as long as the allowance pays beyond the load.
void Tuner::planPriority(size_t arm) {
  const std::string& name = arms_[arm].spec.name;
  const double left = ledger_.leftSeconds();
  if (compileLevel_ == Level::kSuspended) {
    if (left > kResumeShare * ledger_.allowanceSeconds()) {
      proposals_.push_back({ActionKind::kPriority, name, Level::kIdle, 0, "the budget has recovered"});
    }
    return;
  }
  if (left <= 0) {
    proposals_.push_back({ActionKind::kPriority, name, Level::kSuspended, 0, "the budget is spent"});
    return;
  }
  if (ledger_.wallSeconds() < raisedUntil_) return;
  const double seconds = std::min(kMaxRaiseSeconds, (left - arms_[arm].spec.foregroundSeconds) / kRaisedShare);
  if (seconds >= kMinRaiseSeconds) {
    proposals_.push_back({ActionKind::kPriority, name, Level::kRaised, seconds, "paid from the earned budget"});
  } else if (compileLevel_ == Level::kRaised) {
    proposals_.push_back({ActionKind::kPriority, name, Level::kIdle, 0, "what was earned is spent"});
  }
}

void Tuner::planDecision() {
  want(incumbent_);
  propose(ActionKind::kDecide, incumbent_, incumbent_ == kEager ? describeEager() : describeGain(incumbent_));
}

void Tuner::planSettled() {
  if (trial_) return want(trial_->schedule.next() == Side::kArm ? trial_->arm : trial_->reference);
  want(incumbent_);
  if (incumbent_ == kEager) {
    if (!retuneAtStep_ || ledger_.numSteps() < *retuneAtStep_) return;
    retuneAtStep_.reset();
    ++numRetunes_;
    for (Arm& arm : arms_) {
      if (arm.isUsable() && &arm != &arms_[kEager]) arm.reopen();
    }
    phase_ = Phase::kTuning;
    return log("retune", "", "measuring again after the rollback");
  }
  if (config_.mode == Mode::kDeterministic) return;
  if (const std::optional<Interval>& broken = guard_.broken()) {
    const std::string text = arms_[incumbent_].spec.name + " became slower than eager: " + describeSpeed(*broken);
    propose(ActionKind::kRollback, incumbent_, text);
    return want(kEager);
  }
  if (guard_.isRecheckDue(recheckEagerSteps())) startBlock(TrialKind::kRecheck, incumbent_, kEager);
}

// --- helpers --------------------------------------------------------------------------------------------------------

void Tuner::propose(ActionKind kind, size_t arm, std::string reason) {
  proposals_.push_back({kind, arms_[arm].spec.name, Level::kIdle, 0, std::move(reason)});
}

/// The last call wins: there is at most one run action per boundary, and none if the arm stays the same.
void Tuner::want(size_t arm) {
  std::erase_if(proposals_, [](const Action& action) { return action.kind == ActionKind::kRun; });
  if (arm != current_) propose(ActionKind::kRun, arm);
}

/// The expected cost of one step of the arm beyond an eager step.
double Tuner::excessSeconds(size_t arm) const {
  const double eager = eagerStepSeconds();
  const Arm& tested = arms_[arm];
  if (!tested.seconds.empty()) return std::max(0.0, tested.seconds.median() - eager);
  return tested.numSteps > 0 ? std::max(0.0, tested.lastSeconds - eager) : kUnseenRatio * eager;
}

/// The expected cost of the next block of the arm, or only of its first step if it never ran. With late reports,
/// maxLateSteps more steps run before the arm can be taken off.
double Tuner::blockSeconds(size_t arm) const {
  const bool isUnseen = arms_[arm].numSteps == 0;
  return excessSeconds(arm) * (config_.maxLateSteps + (isUnseen ? 1 : 2 * runSteps(eagerStepSeconds()) + 1));
}

bool Tuner::isBlockAffordable(size_t arm) const {
  return ledger_.isUnlimited() || ledger_.canAfford(blockSeconds(arm));
}

/// Whether the ledger can pay for the next step of the arm on trial; if not, the block is given up for now.
bool Tuner::isTrialAffordable() const {
  const bool isArmNext = trial_->kind == TrialKind::kVersusEager && trial_->schedule.next() == Side::kArm;
  return !isArmNext || ledger_.isUnlimited() || ledger_.canAfford(excessSeconds(trial_->arm));
}

void Tuner::startBlock(TrialKind kind, size_t arm, size_t reference) {
  const Side current = current_ == reference ? Side::kReference : Side::kArm;
  // If a run does not meet every shape, runs differ in length, so that a fixed order of shapes does not align with
  // blocks.
  const int32_t extra = shapes_.size() > kMaxShapesInRun ? 5 * numBlocks_++ % 16 : 0;
  trial_.emplace(Trial{kind, arm, reference, AbbaSchedule(runSteps(stepSeconds()) + extra, current)});
  if (kind == TrialKind::kDuel) {
    if (arms_[arm].duelAgainst != arms_[reference].spec.name) arms_[arm].duel.clear();
    arms_[arm].duelAgainst = arms_[reference].spec.name;
  }
  const bool isFirst = kind == TrialKind::kDuel ? arms_[arm].duel.numPairs() == 0 : arms_[arm].numBlocks == 0;
  if (isFirst && kind != TrialKind::kRecheck) log(kind == TrialKind::kDuel ? "duel" : "trial", arms_[arm].spec.name);
  want(reference);
}

/// Median undisturbed eager step over all shapes; 0 if there is none.
double Tuner::eagerStepSeconds() const {
  const RollingWindow& seconds = arms_[kEager].seconds;
  return seconds.empty() ? 0 : seconds.median();
}

/// Before a decision: steps in which nothing can be started, or for which a sample stands.
int64_t Tuner::quietSearchSteps() const {
  const double step = stepSeconds();
  if (phase_ == Phase::kCapturing || ledger_.isUnlimited() || cached_) return 0;
  if (arms_[kEager].seconds.size() < kKnownSteps || step <= 0) return 0;
  if (isCompileRunning()) return std::min(kQuietSamples, static_cast<int64_t>(kQuietSeconds / step));
  const double seconds = ledger_.earningSeconds(nextCostSeconds());
  return std::min(kLongestQuiet, static_cast<int64_t>(std::min(seconds / step, 1e9)));
}

/// The lowest cost among next actions that the ledger has to earn first; 0 if the next one is free.
double Tuner::nextCostSeconds() const {
  if (phase_ == Phase::kObserving) return config_.captureSeconds;
  double least = std::numeric_limits<double>::infinity();
  for (size_t i = 1; i < arms_.size(); ++i) {
    const Arm& arm = arms_[i];
    if (arm.isMeasurable()) least = std::min(least, blockSeconds(i));
    if (arm.isLoadable()) least = std::min(least, arm.spec.foregroundSeconds);
    if (arm.state == ArmState::kCompiling) least = std::min(least, kResumeShare * ledger_.allowanceSeconds());
  }
  return std::isinf(least) ? 0 : least;  // a compile may start as soon as anything is left
}

/// eagerStepSeconds(), or the incumbent's if eager never ran, as after a decision from the database.
double Tuner::stepSeconds() const {
  const RollingWindow& own = arms_[incumbent_].seconds;
  return arms_[kEager].seconds.empty() && !own.empty() ? own.median() : eagerStepSeconds();
}

/// Eager steps of one re-check block: A . B B . A with its dropped steps.
int64_t Tuner::recheckEagerSteps() const { return 2 * int64_t{runSteps(stepSeconds())} + 2; }

/// Steps of a run. It is long enough to meet every shape if batches of different shapes alternate. Otherwise shapes and
/// blocks might stay aligned, and each side would see shapes that the other never sees.
int32_t Tuner::runSteps(double stepSeconds) const {
  const auto numShapes = static_cast<int32_t>(std::min<size_t>(shapes_.size(), kMaxShapesInRun));
  return std::max(numShapes, chooseRunSteps(stepSeconds, config_.minRunSeconds, config_.maxRunSteps));
}

}  // namespace agspeed::runtime::tune
