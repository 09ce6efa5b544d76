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

constexpr size_t kMinEagerSteps = 3;     ///< eager steps before the first block, to know the length of a step
constexpr double kQuietSeconds = 0.01;   ///< seconds between sampled steps while a compile disturbs short steps
constexpr int64_t kQuietSamples = 16;    ///< the largest number of steps between two such samples
constexpr int64_t kLongestQuiet = 1000;  ///< the most steps without a report, so that the report is not too old
constexpr size_t kKnownSteps = 64;       ///< with this many steps eager is known well enough to skip reports

}  // namespace

void Tuner::plan() {
  if (rollbackRequest_) {
    propose(ActionKind::kRollback, arms_.incumbent(), *rollbackRequest_);
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
  if (arms_.stored() == kEager)
    return propose(ActionKind::kDecide, kEager, "the tuning database says eager is the best choice");
  const bool hasWork = arms_.first([](const Arm& arm) { return !arm.isDead(); }).has_value();
  if (!hasWork) return planDecision();
  if (arms_.stored() && arms_[*arms_.stored()].isUsable()) return planCached();  // it needs no graph
  if (arms_.stored()) return propose(ActionKind::kCapture, kEager, "for the decision in the tuning database");
  if (shapes_.isIncomparable()) return planDecision();
  if (ledger_.isUnlimited()) return propose(ActionKind::kCapture, kEager);
  const double cost = config_.captureSeconds;
  if (config_.mode == Mode::kFastStart && cost > config_.fastStartSeconds) {
    return propose(ActionKind::kDecide, kEager, "the capture takes longer than fast-start allows");
  }
  const auto numSeen = static_cast<int32_t>(arms_.eager().seconds.size());
  if (numSeen >= config_.warmupSteps && ledger_.canAfford(cost)) propose(ActionKind::kCapture, kEager);
}

void Tuner::planTuning() {
  if (trial_ && !isTrialAffordable()) trial_.reset();
  if (trial_) return want(trial_->next());
  if (arms_.stored()) return planCached();
  if (config_.mode == Mode::kDeterministic) return planDeterministic();
  if (shapes_.isIncomparable()) return planDecision();
  skipNeedless();
  if (config_.mode == Mode::kMax) return planMax();
  if (planLoad() || planBlock()) return;
  want(arms_.incumbent());
  if (!planCompile()) planDecision();
}

/// Compiles, loads and chooses the database's arm without asking the ledger, because its gain is known.
void Tuner::planCached() {
  want(kEager);
  if (!arms_[*arms_.stored()].isUsable()) return advanceArm(*arms_.stored());
  want(*arms_.stored());
  propose(ActionKind::kDecide, *arms_.stored(), "an earlier run decided so (tuning database)");
}

void Tuner::planDeterministic() {
  want(arms_.incumbent());
  for (size_t arm = 1; arm < arms_.size(); ++arm) {
    const bool isAllowed = config_.pinnedArm.empty() || config_.pinnedArm == arms_[arm].spec.name;
    if (arms_[arm].isDead() || arms_[arm].verdict == Verdict::kLost || !isAllowed) continue;
    if (!arms_[arm].isUsable()) return advanceArm(arm);
    want(arm);
    return propose(ActionKind::kDecide, arm,
                   config_.pinnedArm.empty() ? "the first candidate of the fixed order that passed the gate"
                                             : "the plan that is replayed asks for it");
  }
  if (config_.pinnedArm.empty())
    return propose(ActionKind::kDecide, kEager, arms_.describeEager(shapes_.isIncomparable(), config_));
  propose(ActionKind::kDecide, kEager,
          config_.pinnedArm == arms_.eager().spec.name
              ? "the plan that is replayed asks for it"
              : "the plan that is replayed, " + config_.pinnedArm + ", could not be used; see its reason");
}

/// Proposes the next action that brings an arm closer to ready while training waits for it.
void Tuner::advanceArm(size_t arm) {
  const bool isDeterministic = config_.mode == Mode::kDeterministic;
  const double pause = isDeterministic ? std::numeric_limits<double>::infinity() : config_.maxPauseSeconds;
  switch (arms_[arm].state) {
    case ArmState::kWaiting:
      proposals_.push_back({ActionKind::kCompile, arms_[arm].spec.name, Level::kRaised, 0, {}});
      if (isDeterministic || arms_.stored()) propose(turns_.wait(arm, pause));
      return;
    case ArmState::kCompiling:
      if (!isDeterministic) return planTurn(arm);
      propose(turns_.wait(arm, pause));
      return;
    case ArmState::kCompiled:
    case ArmState::kLoading:
      if (isDeterministic || turns_.isRested())
        proposals_.push_back({ActionKind::kLoad, arms_[arm].spec.name, Level::kRaised, pause, {}});
      return;
    default: return;
  }
}

/// Skips arms that budgetSeconds cannot pay for any more. If some arm is faster than eager, also skips each arm whose
/// `standsInFor` names an arm that is ready.
void Tuner::skipNeedless() {
  for (Arm& arm : arms_) {
    if (arm.verdict == Verdict::kLost || (arm.state != ArmState::kWaiting && arm.state != ArmState::kCompiled))
      continue;
    const double cost = arm.spec.foregroundSeconds + (config_.mode == Mode::kMax ? arm.spec.compileSeconds : 0);
    const std::optional<size_t> better = arms_.find(arm.spec.standsInFor);
    if (ledger_.slowdownSeconds() + cost > config_.budgetSeconds) {
      arm.reason = formatText("the tuning budget of {} s does not allow it", config_.budgetSeconds);
    } else if (arms_.hasProven() && better && arms_[*better].isUsable()) {
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
      arms_.first([this](const Arm& arm) { return arm.isLoadable() && ledger_.canAfford(arm.spec.foregroundSeconds); });
  if (!arm) return false;
  want(arms_.incumbent());
  advanceArm(*arm);
  return true;
}

/// Starts the next block: of the arm with the fewest blocks, of a duel, or to confirm the winner. Returns false if
/// there is none that the ledger can pay for.
bool Tuner::planBlock() {
  if (const std::optional<size_t> arm = arms_.leastMeasured()) {
    if (arms_.eager().seconds.size() < kMinEagerSteps) {
      want(kEager);
      return true;
    }
    if (!ledger_.isUnlimited() && !ledger_.canAfford(blockSeconds(*arm))) return false;
    startBlock(TrialKind::kVersusEager, *arm, kEager);
    return true;
  }
  if (const std::optional<size_t> challenger = arms_.nextChallenger(config_)) {
    startBlock(TrialKind::kDuel, *challenger, arms_.incumbent());
    return true;
  }
  return planConfirmation();
}

/// Compiles one arm at a time, in order. Returns true while there is something to compile, to load or to measure.
bool Tuner::planCompile() {
  for (size_t arm = 1; arm < arms_.size(); ++arm) {
    if (arms_[arm].state == ArmState::kCompiling) {
      propose(turns_.planBudgeted(arm));
      return true;
    }
    if (arms_[arm].isLoadable()) return true;
  }
  // A compile disturbs measuring, so ready arms are measured first, even if the ledger has to earn that.
  const bool isMeasuring = arms_.leastMeasured().has_value();
  for (size_t arm = 1; arm < arms_.size() && !isMeasuring; ++arm) {
    if (!arms_[arm].isWaiting()) continue;
    if (ledger_.leftSeconds() > 0)
      proposals_.push_back({ActionKind::kCompile, arms_[arm].spec.name, Level::kIdle, 0, {}});
    return true;
  }
  return isMeasuring;
}

void Tuner::planDecision() {
  want(arms_.incumbent());
  if (!arms_.hasProven()) {
    return propose(ActionKind::kDecide, kEager, arms_.describeEager(shapes_.isIncomparable(), config_));
  }
  const Interval ratio = arms_.best().versusEager.ratio(config_.confidence);
  propose(ActionKind::kDecide, arms_.incumbent(), arms_.best().spec.name + " has " + describeSpeed(ratio));
}

void Tuner::planSettled() {
  if (trial_) return want(trial_->next());
  want(arms_.incumbent());
  if (!arms_.hasProven()) {
    if (!retuneAtStep_ || ledger_.numSteps() < *retuneAtStep_) return;
    retuneAtStep_.reset();
    ++numRetunes_;
    arms_.reopenReady();
    phase_ = Phase::kTuning;
    return log("retune", "", "measuring again after the rollback");
  }
  if (config_.mode == Mode::kDeterministic) return;
  if (const std::optional<Interval>& broken = guard_.broken()) {
    const std::string text = arms_.best().spec.name + " became slower than eager: " + describeSpeed(*broken);
    propose(ActionKind::kRollback, arms_.incumbent(), text);
    return want(kEager);
  }
  if (guard_.isRecheckDue(recheckEagerSteps())) startBlock(TrialKind::kRecheck, arms_.incumbent(), kEager);
}

// --- helpers --------------------------------------------------------------------------------------------------------

void Tuner::propose(ActionKind kind, size_t arm, std::string reason) {
  proposals_.push_back({kind, arms_[arm].spec.name, Level::kIdle, 0, std::move(reason)});
}

bool Tuner::propose(std::optional<Action> action) {
  if (action) proposals_.push_back(*std::move(action));
  return action.has_value();
}

/// Proposes that `arm` runs the next step. Replaces an earlier proposal of the same boundary. Proposes nothing if `arm`
/// runs already.
void Tuner::want(size_t arm) {
  std::erase_if(proposals_, [](const Action& action) { return action.kind == ActionKind::kRun; });
  if (arm != arms_.current()) propose(ActionKind::kRun, arm);
}

/// Returns the expected cost of the next block of the arm, or only of its first step if it never ran. If steps are
/// reported late, maxLateSteps more steps run before the tuner can switch to another arm.
double Tuner::blockSeconds(size_t arm) const {
  const bool isUnseen = arms_[arm].numSteps == 0;
  return arms_.excessSeconds(arm) * (config_.maxLateSteps + (isUnseen ? 1 : 2 * runSteps(arms_.eagerSeconds()) + 1));
}

/// Whether the ledger can pay for the next step of the arm on trial. If not, the caller stops the block.
bool Tuner::isTrialAffordable() const {
  const bool isArmNext = trial_->kind == TrialKind::kVersusEager && trial_->schedule.next() == Side::kArm;
  return !isArmNext || ledger_.isUnlimited() || ledger_.canAfford(arms_.excessSeconds(trial_->arm));
}

void Tuner::startBlock(TrialKind kind, size_t arm, size_t reference) {
  const Side current = arms_.current() == reference ? Side::kReference : Side::kArm;
  const int32_t numSteps = runSteps(arms_.stepSeconds()) + shapes_.takeExtraSteps();
  trial_.emplace(Trial{kind, arm, reference, AbbaSchedule(numSteps, current)});
  if (kind == TrialKind::kDuel) {
    if (arms_[arm].duelAgainst != arms_[reference].spec.name) arms_[arm].duel.clear();
    arms_[arm].duelAgainst = arms_[reference].spec.name;
  }
  const bool isFirst = kind == TrialKind::kDuel ? arms_[arm].duel.numPairs() == 0 : arms_[arm].numBlocks == 0;
  if (isFirst && kind != TrialKind::kRecheck) log(kind == TrialKind::kDuel ? "duel" : "trial", arms_[arm].spec.name);
  want(reference);
}

/// Before a decision: returns how many steps need no report, because nothing can start in them or because one sampled
/// step is enough.
int64_t Tuner::quietSearchSteps() const {
  const double step = arms_.stepSeconds();
  if (phase_ == Phase::kCapturing || ledger_.isUnlimited() || arms_.stored()) return 0;
  if (arms_.eager().seconds.size() < kKnownSteps || step <= 0) return 0;
  if (turns_.isDisturbing()) return std::min(kQuietSamples, static_cast<int64_t>(kQuietSeconds / step));
  const double seconds = ledger_.earningSeconds(nextCostSeconds());
  return std::min(kLongestQuiet, static_cast<int64_t>(std::min(seconds / step, 1e9)));
}

/// Returns the lowest cost of the next actions that have a cost, or 0 if there are none.
double Tuner::nextCostSeconds() const {
  if (phase_ == Phase::kObserving) return config_.captureSeconds;
  double least = std::numeric_limits<double>::infinity();
  for (size_t i = 1; i < arms_.size(); ++i) {
    const Arm& arm = arms_[i];
    if (arm.isMeasurable()) least = std::min(least, blockSeconds(i));
    if (arm.isLoadable()) least = std::min(least, arm.spec.foregroundSeconds);
    if (arm.state == ArmState::kCompiling) least = std::min(least, turns_.resumeSeconds());
  }
  return std::isinf(least) ? 0 : least;  // a compile may start if any budget is left
}

/// Eager steps of one re-check block: A . B B . A with its dropped steps.
int64_t Tuner::recheckEagerSteps() const { return 2 * int64_t{runSteps(arms_.stepSeconds())} + 2; }

int32_t Tuner::runSteps(double stepSeconds) const {
  return std::max(shapes_.minRunSteps(), chooseRunSteps(stepSeconds, config_.minRunSeconds, config_.maxRunSteps));
}

}  // namespace agspeed::runtime::tune
