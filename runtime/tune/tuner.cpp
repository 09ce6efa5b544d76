// SPDX-License-Identifier: Apache-2.0
// Events, judgements and actions: how the Tuner's state changes. tuner_plan.cpp plans.
#include "runtime/tune/tuner.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "runtime/base/log.h"
#include "runtime/tune/arms/judgement.h"

namespace agspeed::runtime::tune {
namespace {

constexpr int64_t kNewArmSteps = 3;  ///< the first steps of an arm, which allocate and initialize
constexpr int32_t kMaxMissed = 64;   ///< an arm is given up after this many steps in a row that ran another arm instead
constexpr int32_t kMaxGrowths = 8;   ///< how often the tuner starts again because a step captured more graphs
constexpr size_t kMaxTimeline = 2000;

}  // namespace

std::string_view toString(Phase phase) {
  switch (phase) {
    case Phase::kObserving: return "observing";
    case Phase::kCapturing: return "capturing";
    case Phase::kTuning: return "tuning";
    case Phase::kSettled: return "settled";
  }
  return "unknown";
}

StatusOr<std::unique_ptr<Tuner>> Tuner::create(TunerConfig config) {
  AG_RETURN_IF_ERROR(validate(config));
  return std::unique_ptr<Tuner>(new Tuner(std::move(config)));
}

Tuner::Tuner(TunerConfig config)
    : config_(std::move(config)), ledger_(config_), guard_(config_), turns_(config_, arms_, ledger_) {
  for (const ArmSpec& spec : config_.arms) AG_CHECK(report(ArmAdded{spec}).isOk(), "arms were validated");
}

// --- events ---------------------------------------------------------------------------------------------------------

template <>
Status Tuner::on(const Started& event) {
  ledger_.addStartUp(event.foregroundSeconds);
  return {};
}

template <>
Status Tuner::on(const Paused& event) {
  ledger_.addForeground(event.foregroundSeconds);
  return {};
}

template <>
Status Tuner::on(const BudgetShared& event) {
  ledger_.shareAmong(event.numSearches);
  return {};
}

template <>
Status Tuner::on(const CaptureExpected& event) {
  if (event.foregroundSeconds >= 0) config_.captureSeconds = event.foregroundSeconds;
  return {};
}

template <>
Status Tuner::on(const CaptureFinished& event) {
  ledger_.addForeground(event.foregroundSeconds);
  if (phase_ == Phase::kCapturing) phase_ = Phase::kTuning;
  return {};
}

template <>
Status Tuner::on(const CaptureFailed& event) {
  arms_.skipWaiting("capture failed: " + event.reason);
  arms_.setStored({});
  return on(CaptureFinished{event.foregroundSeconds});
}

template <>
Status Tuner::on(const CaptureGrew&) {
  if (phase_ == Phase::kSettled) guard_.doubt();
  if (phase_ != Phase::kTuning || numGrowths_ >= kMaxGrowths) return {};
  ++numGrowths_;
  trial_.reset();
  arms_.forgetAll();
  log("more", "", "another graph was captured");
  return {};
}

template <>
Status Tuner::on(const LoadsExpected& event) {
  for (Arm& arm : arms_) arm.spec.foregroundSeconds = std::max(arm.spec.foregroundSeconds, event.foregroundSeconds);
  return {};
}

template <>
Status Tuner::on(const ArmChanged& event) {
  const std::optional<size_t> index = arms_.find(event.arm);
  if (!index || *index == kEager) return invalidArgument("tuner: arm \"" + event.arm + "\" cannot change its state");
  ledger_.addForeground(event.foregroundSeconds);
  ledger_.addBackground(event.backgroundSeconds);
  Arm& arm = arms_[*index];
  arm.foregroundSeconds += event.foregroundSeconds;
  arm.backgroundSeconds += event.backgroundSeconds;
  // A dead arm stays dead. A late "ready" of a compile that was stopped must not change that.
  if (arm.isDead()) return {};
  if (event.state == ArmState::kCompiling && arm.state != ArmState::kCompiling) turns_.compileStarted();
  arm.state = event.state;
  if (arm.state == ArmState::kReady) shapes_.armLoaded();
  if (arm.isDead()) {
    arm.reason = event.reason;
    log(std::string(toString(arm.state)), event.arm, event.reason);
    if (trial_ && (trial_->arm == *index || trial_->reference == *index)) trial_.reset();
    const bool isDecided = phase_ == Phase::kSettled;
    if (isDecided && arms_.incumbent() == *index) rollbackRequest_ = arm.reason;
    arms_.dismiss(*index, isDecided);
  }
  return {};
}

template <>
Status Tuner::on(const ArmAdded& event) {
  const ArmSpec& spec = event.arm;
  const bool isSlow =
      config_.mode == Mode::kFastStart && spec.compileSeconds + spec.foregroundSeconds > config_.fastStartSeconds;
  AG_RETURN_IF_ERROR(arms_.add(spec, isSlow ? "takes longer than fast-start allows" : ""));
  if (phase_ == Phase::kSettled && !isSlow) phase_ = Phase::kTuning;
  return {};
}

template <>
Status Tuner::on(const StepFinished& step) {
  const std::optional<size_t> index = arms_.find(step.arm);
  if (!index) return invalidArgument("tuner: a step ran on the unknown arm \"" + step.arm + "\"");
  if (!std::isfinite(step.seconds) || step.seconds <= 0) {
    return invalidArgument("tuner: a step took {} s", step.seconds);
  }
  const int32_t shape = shapes_.indexOf(step.shape);
  turns_.stepFinished();
  const bool isAfterSwitch = arms_.isSwitch(*index);
  const bool isUndisturbed = !step.disturbed && !turns_.isDisturbing();
  accountStep(*index, shape, step, isAfterSwitch);
  Arm& arm = arms_[*index];
  const bool isNew = *index != kEager && arm.numSteps < kNewArmSteps;
  const bool isSteady = isUndisturbed && !isAfterSwitch && !isNew;
  const bool counts = arm.addStep(shape, step, isSteady) && isUndisturbed && !isNew;
  shapes_.addStep(counts || turns_.isDisturbing());
  if (*index == kEager && isSteady) shapes_.addEagerPeak(shape, step.peakBytes);
  if (phase_ == Phase::kSettled && arms_.hasProven()) {
    guard_.addSteps(1, trial_ && *index == kEager ? 1 : 0);
    if (!trial_ && *index == arms_.incumbent() && isSteady && counts) guard_.addSteadyStep(shape, step.seconds);
  }
  feedTrial(*index, shape, step, counts);
  return {};
}

void Tuner::accountStep(size_t arm, int32_t shape, const StepFinished& step, bool isAfterSwitch) {
  ledger_.addTrained(step.seconds, 1);
  if (step.disturbed) return;
  const std::optional<double> eager = arms_.eager().typicalSeconds(shape);
  double seconds = step.seconds;
  if (turns_.isDisturbing() && !isAfterSwitch) {
    if (const std::optional<double> own = arms_[arm].typicalSeconds(shape)) {
      turns_.setInflation(seconds - *own);
      ledger_.addInflation(turns_.inflation());
      seconds = *own;
    }
  }
  if (arm == kEager || !eager) return;
  ledger_.addSaved(*eager - seconds);
  if (arms_[arm].isMeasurable()) ledger_.addTrial(arms_[arm].spec.name, seconds - *eager);
}

void Tuner::feedTrial(size_t arm, int32_t shape, const StepFinished& step, bool counts) {
  if (!trial_) return;
  AbbaSchedule& schedule = trial_->schedule;
  const Side asked = schedule.next();
  const size_t askedArm = asked == Side::kArm ? trial_->arm : trial_->reference;
  const Side ran = arm == askedArm ? asked : (asked == Side::kArm ? Side::kReference : Side::kArm);
  Arm& tested = arms_[trial_->arm];
  Comparison& comparison = trial_->kind == TrialKind::kVersusEager ? tested.versusEager
                           : trial_->kind == TrialKind::kDuel      ? tested.duel
                                                                   : guard_.recheck();
  schedule.addStep(ran, shape, step.seconds, counts, comparison);
  if (shapes_.isIncomparable()) {
    if (trial_->kind == TrialKind::kRecheck) guard_.forgoBurst();
    return trial_.reset();
  }
  if (trial_->kind == TrialKind::kVersusEager && isHopeless(tested, arms_.eager())) {
    arms_.disqualify(trial_->arm, "more than three times slower than eager from the first step on");
    return trial_.reset();
  }
  if (schedule.numMissed() < kMaxMissed) return;
  if (trial_->kind == TrialKind::kVersusEager)
    arms_.disqualify(trial_->arm, "did not run when asked: its guards failed every time");
  if (trial_->kind == TrialKind::kDuel)
    arms_.disqualify(trial_->arm, "did not run when asked in the direct comparison");
  trial_.reset();
}

template <>
Status Tuner::on(const StepsSkipped& event) {
  const auto count = static_cast<double>(event.count);
  ledger_.addTrained(event.seconds, event.count);
  if (turns_.isDisturbing()) ledger_.addInflation(turns_.inflation() * count);
  if (!arms_.hasProven() || phase_ != Phase::kSettled) return {};
  guard_.addSteps(event.count, 0);
  const double eager = arms_.eagerSeconds();
  if (eager > 0) ledger_.addSaved(eager * count - event.seconds);
  return {};
}

template <>
Status Tuner::on(const Resumed& event) {
  if (phase_ != Phase::kTuning) {
    return invalidArgument("tuner: earlier findings can be reported only between capture and decision");
  }
  AG_RETURN_IF_ERROR(arms_.resume(event.findings));
  log("resume", "", formatText("{} pairs of an earlier run", numResumedPairs()));
  return {};
}

template <>
Status Tuner::on(const Adopted& event) {
  const std::optional<size_t> index = arms_.find(event.arm);
  if (!index) return invalidArgument("tuner: the database names the unknown arm \"" + event.arm + "\"");
  if (phase_ != Phase::kObserving) return invalidArgument("tuner: too late to adopt a decision, tuning has begun");
  if (arms_[*index].isDead()) {
    // The database knows that this arm is faster, so fast-start does not skip it for its estimated compile time.
    arms_[*index].state = ArmState::kWaiting;
    arms_[*index].reason.clear();
  }
  arms_.setStored(*index);
  return {};
}

Status Tuner::report(const TunerEvent& event) {
  AG_LOG(kTrace, "tuner: {}", toText(event));
  return std::visit([this](const auto& alternative) { return on(alternative); }, event);
}

// --- boundary -------------------------------------------------------------------------------------------------------

std::vector<Action> Tuner::advance() {
  proposals_.clear();
  plan();
  for (const Action& action : proposals_) apply(action);
  return std::exchange(proposals_, {});
}

void Tuner::apply(const Action& action) {
  const size_t arm = arms_.find(action.arm).value_or(kEager);
  switch (action.kind) {
    case ActionKind::kCapture: phase_ = Phase::kCapturing; return log("capture", "", action.reason);
    case ActionKind::kCompile:
      arms_[arm].state = ArmState::kCompiling;
      turns_.begin(arm, action.level);
      return log("compile", action.arm, std::string(toString(action.level)));
    case ActionKind::kPriority: return turns_.change(action);
    case ActionKind::kLoad: arms_[arm].state = ArmState::kLoading; return log("load", action.arm);
    case ActionKind::kWait: return turns_.beginTurn();
    case ActionKind::kRun: arms_.setCurrent(arm); return;
    case ActionKind::kRefine: return;  // only for groups
    case ActionKind::kDecide: return settle(arm, action.reason);
    case ActionKind::kRollback: return rollBack(action.reason);
  }
}

void Tuner::settle(size_t arm, const std::string& reason) {
  const bool isFromDatabase = arms_.stored() == arm;
  decision_ = Decision{arms_[arm].spec.name, reason, {}, ledger_.numSteps(), ledger_.wallSeconds(), isFromDatabase};
  if (arm != kEager && arms_[arm].versusEager.numPairs() > 0) {
    decision_->ratio = arms_[arm].versusEager.ratio(config_.confidence);
  }
  arms_.choose(arm, reason);
  trial_.reset();
  phase_ = Phase::kSettled;
  ledger_.endSearch();
  guard_.start(isFromDatabase, arms_.stepLimits());
  if (arm == kEager && numRetunes_ > 0) scheduleRetune();
  log("decide", arms_[arm].spec.name, reason);
}

void Tuner::rollBack(const std::string& reason) {
  Arm& arm = arms_[arms_.incumbent()];
  const std::string left = arm.spec.name;
  ++numRollbacks_;
  trial_.reset();
  rollbackRequest_.reset();
  arm.verdict = Verdict::kLost;
  arm.reason = reason;
  arms_.promote(kEager);
  const std::string why = "rolled back from " + left + ": " + reason;
  decision_ = Decision{std::string(kEagerArm), why, {}, ledger_.numSteps(), ledger_.wallSeconds()};
  phase_ = Phase::kSettled;
  retuneAtStep_.reset();
  if (arm.isUsable()) scheduleRetune();
  log("rollback", left, reason);
}

/// An arm that was faster before the rollback may become faster again. It is measured again later, at growing intervals
/// and at most maxRetunes times.
void Tuner::scheduleRetune() {
  if (numRetunes_ >= config_.maxRetunes) return;
  retuneAtStep_ = ledger_.numSteps() + (config_.retuneAfterSteps << std::min(numRetunes_, 20));
}

// --- judgements -----------------------------------------------------------------------------------------------------

void Tuner::finishBlock() {
  const Trial trial = *trial_;
  trial_.reset();
  ++numBlocks_;
  switch (trial.kind) {
    case TrialKind::kVersusEager: ++arms_[trial.arm].numBlocks; return judgeVersusEager(trial.arm);
    case TrialKind::kDuel: return judgeDuel(trial.arm);
    case TrialKind::kRecheck: return guard_.finishBlock();
  }
}

void Tuner::judgeVersusEager(size_t index) {
  Arm& arm = arms_[index];
  if (!isJudgeable(arm, config_)) return;
  if (arm.versusEager.dropContradicted()) log("forget", arm.spec.name, "pairs of this run contradict an earlier one's");
  const std::optional<size_t> rival = arms_.findRival(index, config_);
  const Standing standing = {shapes_.eagerPeaks(), arms_.bestRatio(), rival ? arms_[*rival].spec.name : std::string()};
  const Judgement judgement = tune::judgeVersusEager(arm, standing, config_);
  switch (judgement.kind) {
    case Judgement::Kind::kContinue: return;
    case Judgement::Kind::kAccept:
      arm.accept(judgement.reason, judgement.isConfirmed);
      if (!arms_.hasProven()) arms_.promote(index);
      turns_.armProven(arm);
      return;
    case Judgement::Kind::kLose: return arms_.lose(index, judgement.reason);
    case Judgement::Kind::kLoseTo: return arms_.loseTo(index, *rival, judgement.reason);
    case Judgement::Kind::kNotFaster:
      arms_.lose(index, judgement.reason);
      return arms_.reviveBeatenBy(index, 1 - config_.minGain);
    case Judgement::Kind::kTooLarge: arm.isTooLarge = true; return arms_.disqualify(index, judgement.reason);
    case Judgement::Kind::kDisqualify: return arms_.disqualify(index, judgement.reason);
  }
}

void Tuner::judgeDuel(size_t index) {
  arms_[index].duel.dropContradicted();
  const std::optional<DuelResult> result = tune::judgeDuel(arms_[index].duel, config_);
  if (!result) return;
  const size_t winner = result->isWon ? index : arms_.incumbent();
  arms_.loseTo(result->isWon ? arms_.incumbent() : index, winner, result->evidence);
  arms_.promote(winner);
}

// --- bookkeeping ----------------------------------------------------------------------------------------------------

void Tuner::log(std::string what, std::string arm, std::string reason) {
  if (timeline_.size() >= kMaxTimeline) return;
  timeline_.push_back({std::move(what), std::move(arm), ledger_.numSteps(), ledger_.wallSeconds(), std::move(reason)});
}

std::string_view Tuner::status() const {
  if (phase_ != Phase::kSettled) return "tuning";
  return arms_.hasProven() ? "tuned" : "eager";
}

std::string Tuner::statusReason() const {
  if (phase_ == Phase::kSettled) return decision_->reason;
  if (phase_ == Phase::kObserving) return "the time for the capture is still being earned; nothing is captured yet";
  return arms_.best().spec.name + " is the best candidate proven so far";
}

int64_t Tuner::quietSteps() const {
  if (trial_ || rollbackRequest_) return 0;
  if (phase_ != Phase::kSettled) return quietSearchSteps();
  if (arms_.hasProven()) {
    return config_.mode == Mode::kDeterministic ? kForever : guard_.quietSteps(recheckEagerSteps());
  }
  if (!retuneAtStep_) return kForever;
  return std::max<int64_t>(0, *retuneAtStep_ - ledger_.numSteps());
}

}  // namespace agspeed::runtime::tune
