// SPDX-License-Identifier: Apache-2.0
// Events and actions: how the Tuner's state changes. tuner_plan.cpp plans; tuner_judge.cpp judges.
#include "runtime/tune/tuner.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace agspeed::runtime::tune {
namespace {

constexpr int64_t kNewArmSteps = 3;     ///< first steps of an arm: allocations, lazy initialisation
constexpr double kHopelessRatio = 3.0;  ///< an arm whose first steps are all this much slower than eager is out
constexpr size_t kHopelessSteps = 3;
constexpr int32_t kMaxUncounted = 1024;  ///< steps in a row that could not be compared
constexpr int32_t kMaxMissed = 64;       ///< steps in a row in which another arm than the requested one ran
constexpr int32_t kMaxGrowths = 8;       ///< how often more graphs make the tuner start again
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

Tuner::Tuner(TunerConfig config) : config_(std::move(config)), ledger_(config_), guard_(config_) {
  arms_.emplace_back();
  arms_[kEager].spec.name = kEagerArm;
  arms_[kEager].state = ArmState::kReady;
  arms_[kEager].verdict = Verdict::kAccepted;
  arms_[kEager].reason = "always available";
  for (const ArmSpec& spec : config_.arms) AG_CHECK(addArm(spec).isOk(), "arms were validated");
}

// --- events ---------------------------------------------------------------------------------------------------------

void Tuner::captureFinished(double foregroundSeconds) {
  ledger_.addForeground(foregroundSeconds);
  if (phase_ == Phase::kCapturing) phase_ = Phase::kTuning;
}

void Tuner::captureFailed(const std::string& reason, double foregroundSeconds) {
  ledger_.addForeground(foregroundSeconds);
  for (Arm& arm : arms_) {
    if (arm.state != ArmState::kWaiting) continue;
    arm.state = ArmState::kSkipped;
    arm.reason = "capture failed: " + reason;
  }
  cached_.reset();
  if (phase_ == Phase::kCapturing) phase_ = Phase::kTuning;
}

void Tuner::captureGrew() {
  if (phase_ == Phase::kSettled) guard_.doubt();
  if (phase_ != Phase::kTuning || numGrowths_ >= kMaxGrowths) return;
  ++numGrowths_;
  trial_.reset();
  earlier_.clear();
  incumbent_ = kEager;
  for (Arm& arm : arms_) {
    if (&arm == &arms_[kEager] || arm.isDead()) continue;
    if (arm.state != ArmState::kCompiling) arm.state = ArmState::kWaiting;
    arm.forget();
  }
  log("more", "", "another graph was captured");
}

void Tuner::expectLoads(double foregroundSeconds) {
  for (Arm& arm : arms_) arm.spec.foregroundSeconds = std::max(arm.spec.foregroundSeconds, foregroundSeconds);
}

Status Tuner::armChanged(const ArmEvent& event) {
  const std::optional<size_t> index = findArm(event.arm);
  if (!index || *index == kEager) return invalidArgument("tuner: arm \"" + event.arm + "\" cannot change its state");
  ledger_.addForeground(event.foregroundSeconds);
  ledger_.addBackground(event.backgroundSeconds);
  Arm& arm = arms_[*index];
  arm.foregroundSeconds += event.foregroundSeconds;
  arm.backgroundSeconds += event.backgroundSeconds;
  // A dead arm stays dead: a late "ready" of a killed compile must not revive it.
  if (arm.isDead()) return {};
  if (event.state == ArmState::kCompiling && arm.state != ArmState::kCompiling) lastInflation_ = 0;
  arm.state = event.state;
  if (arm.state == ArmState::kReady) hasLoaded_ = true;
  if (arm.isDead()) {
    arm.reason = event.reason;
    log(std::string(toString(arm.state)), event.arm, event.reason);
    dismiss(*index);
  }
  return {};
}

Status Tuner::addArm(ArmSpec spec) {
  if (spec.name.empty() || findArm(spec.name)) {
    return invalidArgument("tuner: arm \"" + spec.name + "\" has no name or exists already");
  }
  arms_.emplace_back();
  Arm& arm = arms_.back();
  arm.spec = std::move(spec);
  const double quick = config_.fastStartSeconds;
  if (config_.mode == Mode::kFastStart && arm.spec.compileSeconds + arm.spec.foregroundSeconds > quick) {
    arm.state = ArmState::kSkipped;
    arm.reason = "takes longer than fast-start allows";
  }
  if (phase_ == Phase::kSettled && !arm.isDead()) phase_ = Phase::kTuning;
  takeEarlier(arm);
  return {};
}

Status Tuner::stepFinished(const StepReport& step) {
  const std::optional<size_t> index = findArm(step.arm);
  if (!index) return invalidArgument("tuner: a step ran on the unknown arm \"" + step.arm + "\"");
  if (!std::isfinite(step.seconds) || step.seconds <= 0) {
    return invalidArgument("tuner: a step took {} s", step.seconds);
  }
  const int32_t shape = shapeIndex(step.shape);
  foregroundAtStep_ = ledger_.foregroundSeconds();
  const bool isAfterSwitch = *index != std::exchange(lastRan_, *index);
  const bool isUndisturbed = !step.disturbed && !isCompileRunning();
  accountStep(*index, shape, step, isAfterSwitch);
  Arm& arm = arms_[*index];
  const bool isNew = *index != kEager && arm.numSteps < kNewArmSteps;
  const bool isSteady = isUndisturbed && !isAfterSwitch && !isNew;
  const bool counts = arm.addStep(shape, step, isSteady) && isUndisturbed && !isNew;
  numUncounted_ = counts || isCompileRunning() ? 0 : numUncounted_ + 1;
  if (*index == kEager && isSteady) recordEagerPeak(shape, step.peakBytes);
  if (phase_ == Phase::kSettled && incumbent_ != kEager) {
    guard_.addSteps(1, trial_ && *index == kEager ? 1 : 0);
    if (!trial_ && *index == incumbent_ && isSteady && counts) guard_.addSteadyStep(shape, step.seconds);
  }
  feedTrial(*index, shape, step, counts);
  return {};
}

void Tuner::accountStep(size_t arm, int32_t shape, const StepReport& step, bool isAfterSwitch) {
  ledger_.addTrained(step.seconds, 1);
  if (step.disturbed) return;
  const std::optional<double> eager = arms_[kEager].typicalSeconds(shape);
  double seconds = step.seconds;
  if (isCompileRunning() && !isAfterSwitch) {
    if (const std::optional<double> own = arms_[arm].typicalSeconds(shape)) {
      lastInflation_ = seconds - *own;
      ledger_.addInflation(lastInflation_);
      seconds = *own;
    }
  }
  if (arm == kEager || !eager) return;
  ledger_.addSaved(*eager - seconds);
  if (arms_[arm].isMeasurable()) ledger_.addTrial(arms_[arm].spec.name, seconds - *eager);
}

void Tuner::recordEagerPeak(int32_t shape, int64_t bytes) {
  if (bytes <= 0) return;
  const auto [it, isNew] = eagerPeaks_.try_emplace(shape, EagerPeak{0, !hasLoaded_});
  if (hasLoaded_ && it->second.isFromBeforeLoad) return;
  it->second.bytes = std::max(it->second.bytes, bytes);
}

void Tuner::feedTrial(size_t arm, int32_t shape, const StepReport& step, bool counts) {
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
  if (isIncomparable()) {
    if (trial_->kind == TrialKind::kRecheck) guard_.forgoBurst();
    return trial_.reset();
  }
  if (trial_->kind == TrialKind::kVersusEager && isHopeless(tested)) {
    disqualify(trial_->arm, "more than three times slower than eager from the first step on");
    return trial_.reset();
  }
  if (schedule.numMissed() < kMaxMissed) return;
  if (trial_->kind == TrialKind::kVersusEager)
    disqualify(trial_->arm, "did not run when asked: its guards failed every time");
  if (trial_->kind == TrialKind::kDuel) disqualify(trial_->arm, "did not run when asked in the direct comparison");
  trial_.reset();
}

/// Ends the trial of a very slow arm after a handful of steps; all others are judged by their pairs.
bool Tuner::isHopeless(const Arm& arm) const {
  if (arm.seconds.size() < kHopelessSteps || arms_[kEager].seconds.empty()) return false;
  const auto& values = arm.seconds.values();
  return *std::min_element(values.begin(), values.end()) > kHopelessRatio * arms_[kEager].seconds.median();
}

void Tuner::stepsSkipped(int64_t count, double seconds) {
  ledger_.addTrained(seconds, count);
  if (isCompileRunning()) ledger_.addInflation(lastInflation_ * static_cast<double>(count));
  if (incumbent_ == kEager || phase_ != Phase::kSettled) return;
  guard_.addSteps(count, 0);
  const double eager = eagerStepSeconds();
  if (eager > 0) ledger_.addSaved(eager * static_cast<double>(count) - seconds);
}

Status Tuner::adopt(const std::string& arm) {
  const std::optional<size_t> index = findArm(arm);
  if (!index) return invalidArgument("tuner: the database names the unknown arm \"" + arm + "\"");
  if (phase_ != Phase::kObserving) return invalidArgument("tuner: too late to adopt a decision, tuning has begun");
  if (arms_[*index].isDead()) {
    // An arm named by the database is known to be worth it, so the estimate of fast-start does not matter.
    arms_[*index].state = ArmState::kWaiting;
    arms_[*index].reason.clear();
  }
  cached_ = *index;
  return {};
}

// --- boundary -------------------------------------------------------------------------------------------------------

std::vector<Action> Tuner::advance() {
  proposals_.clear();
  plan();
  for (const Action& action : proposals_) apply(action);
  return std::exchange(proposals_, {});
}

void Tuner::apply(const Action& action) {
  const size_t arm = findArm(action.arm).value_or(kEager);
  switch (action.kind) {
    case ActionKind::kCapture: phase_ = Phase::kCapturing; return log("capture", "", action.reason);
    case ActionKind::kCompile: return beginCompile(arm, action.level);
    case ActionKind::kPriority:
      compileLevel_ = action.level;
      raisedUntil_ = ledger_.wallSeconds() + action.seconds;
      return;
    case ActionKind::kLoad: arms_[arm].state = ArmState::kLoading; return log("load", action.arm);
    case ActionKind::kWait: return beginTurn();
    case ActionKind::kRun: current_ = arm; return;
    case ActionKind::kRefine: return;  // only for groups
    case ActionKind::kDecide: return settle(arm, action.reason);
    case ActionKind::kRollback: return rollBack(action.reason);
  }
}

void Tuner::beginCompile(size_t arm, Level level) {
  arms_[arm].state = ArmState::kCompiling;
  if (arms_[arm].needsBackground()) compileLevel_ = level;
  // The proven arm runs first, unless the compile is expected to fit into one pause.
  if (incumbent_ != kEager && arms_[arm].spec.compileSeconds > config_.maxPauseSeconds) beginTurn();
  log("compile", arms_[arm].spec.name, std::string(toString(level)));
}

void Tuner::settle(size_t arm, const std::string& reason) {
  const bool isFromDatabase = cached_ == arm;
  decision_ = Decision{arms_[arm].spec.name, reason, {}, ledger_.numSteps(), ledger_.wallSeconds(), isFromDatabase};
  if (arm != kEager && arms_[arm].versusEager.numPairs() > 0) {
    decision_->ratio = arms_[arm].versusEager.ratio(config_.confidence);
  }
  incumbent_ = arm;
  arms_[arm].verdict = Verdict::kAccepted;
  arms_[arm].isConfirmed = true;
  arms_[arm].reason = reason;
  cached_.reset();
  trial_.reset();
  // The driver gives up running compiles.
  for (Arm& other : arms_) {
    if (other.state == ArmState::kCompiling) other.state = ArmState::kWaiting;
  }
  phase_ = Phase::kSettled;
  ledger_.endSearch();
  guard_.start(isFromDatabase, stepLimits(arm));
  if (arm == kEager && numRetunes_ > 0) scheduleRetune();
  log("decide", arms_[arm].spec.name, reason);
}

/// By shape class: the step time that the guard expects of the arm at most.
std::map<int32_t, double> Tuner::stepLimits(size_t arm) const {
  std::map<int32_t, double> limits;
  for (const auto& [shape, record] : arms_[arm].shapes) {
    const std::optional<double> chosen = arms_[arm].typicalSeconds(shape);
    const std::optional<double> eager = arms_[kEager].typicalSeconds(shape);
    if (chosen && eager) limits[shape] = DriftGuard::stepLimit(*chosen, *eager);
  }
  return limits;
}

void Tuner::rollBack(const std::string& reason) {
  Arm& arm = arms_[incumbent_];
  const std::string left = arm.spec.name;
  ++numRollbacks_;
  trial_.reset();
  rollbackRequest_.reset();
  arm.verdict = Verdict::kLost;
  arm.reason = reason;
  incumbent_ = kEager;
  decision_ = Decision{std::string(kEagerArm),
                       "rolled back from " + left + ": " + reason,
                       {},
                       ledger_.numSteps(),
                       ledger_.wallSeconds(),
                       false};
  phase_ = Phase::kSettled;
  retuneAtStep_.reset();
  if (arm.isUsable()) scheduleRetune();
  log("rollback", left, reason);
}

/// An arm that was good may be good again. It is tried later, at growing intervals and a limited number of times.
void Tuner::scheduleRetune() {
  if (numRetunes_ >= config_.maxRetunes) return;
  retuneAtStep_ = ledger_.numSteps() + (config_.retuneAfterSteps << std::min(numRetunes_, 20));
}

void Tuner::dismiss(size_t arm) {
  if (trial_ && (trial_->arm == arm || trial_->reference == arm)) trial_.reset();
  if (cached_ == arm) cached_.reset();
  for (Arm& other : arms_) {
    if (other.duelAgainst == arms_[arm].spec.name) other.duelAgainst.clear();
  }
  if (incumbent_ == arm && phase_ == Phase::kSettled) {
    rollbackRequest_ = arms_[arm].reason;
    return;
  }
  if (incumbent_ == arm) incumbent_ = kEager;
  if (phase_ != Phase::kSettled) reviveBeatenBy(arms_[arm].spec.name);
}

// --- bookkeeping ----------------------------------------------------------------------------------------------------

std::optional<size_t> Tuner::findArm(const std::string& name) const {
  for (size_t i = 0; i < arms_.size(); ++i) {
    if (arms_[i].spec.name == name) return i;
  }
  return std::nullopt;
}

bool Tuner::isIncomparable() const { return numUncounted_ >= kMaxUncounted; }

int32_t Tuner::shapeIndex(const std::string& shape) {
  const auto [it, isNew] = shapeIndices_.try_emplace(shape, static_cast<int32_t>(shapes_.size()));
  if (isNew) shapes_.push_back(shape);
  return it->second;
}

bool Tuner::isCompileRunning() const {
  if (compileLevel_ == Level::kSuspended) return false;
  return std::any_of(arms_.begin(), arms_.end(), [](const Arm& arm) { return arm.state == ArmState::kCompiling; });
}

void Tuner::log(std::string what, std::string arm, std::string reason) {
  if (timeline_.size() >= kMaxTimeline) return;
  timeline_.push_back({std::move(what), std::move(arm), ledger_.numSteps(), ledger_.wallSeconds(), std::move(reason)});
}

std::string_view Tuner::status() const {
  if (phase_ != Phase::kSettled) return "tuning";
  return incumbent_ == kEager ? "eager" : "tuned";
}

std::string Tuner::statusReason() const {
  if (phase_ == Phase::kSettled) return decision_->reason;
  if (phase_ == Phase::kObserving) return "the time for the capture is still being earned; nothing is captured yet";
  return arms_[incumbent_].spec.name + " is the best candidate proven so far";
}

int64_t Tuner::quietSteps() const {
  if (trial_ || rollbackRequest_) return 0;
  if (phase_ != Phase::kSettled) return quietSearchSteps();
  if (incumbent_ != kEager) {
    return config_.mode == Mode::kDeterministic ? kForever : guard_.quietSteps(recheckEagerSteps());
  }
  if (!retuneAtStep_) return kForever;
  return std::max<int64_t>(0, *retuneAtStep_ - ledger_.numSteps());
}

}  // namespace agspeed::runtime::tune
