// SPDX-License-Identifier: Apache-2.0
#include "tests/runtime/tune/simulator.h"

#include <algorithm>
#include <cmath>

namespace agspeed::runtime::tune::testing {
namespace {

constexpr int64_t kLongestNap = 240;

}  // namespace

Simulator::Simulator(World world) : world_(std::move(world)), random_(world_.seed) {
  TunerConfig config = world_.config;
  config.mode = world_.mode;
  config.captureSeconds = world_.captureSeconds;
  config.maxLateSteps = world_.maxLate;
  for (const SimulatedArm& arm : world_.arms)
    config.arms.push_back({arm.name, arm.compileSeconds, arm.loadSeconds, arm.standsInFor});
  tuner_ = Tuner::create(config).value();
}

const SimulatedArm* Simulator::find(const std::string& arm) const {
  for (const SimulatedArm& candidate : world_.arms) {
    if (candidate.name == arm) return &candidate;
  }
  return nullptr;
}

void Simulator::run(int64_t numSteps) {
  for (int64_t i = 0; i < numSteps; ++i) {
    // Waiting and loading take no steps: a driver repeats until the tuner wants the next step.
    for (int round = 0; round < 50 && hasReported_; ++round) {
      const std::vector<Action> actions = tuner_->advance();
      bool isBlocking = false;
      for (const Action& action : actions) isBlocking |= carryOut(action);
      if (isBlocking) continue;
      if (world_.takesNaps) fallAsleep();
      break;
    }
    stepOnce();
  }
}

void Simulator::fallAsleep() {
  const int64_t quiet = tuner_->quietSteps();
  quietLeft_ = quiet == Tuner::kForever ? kLongestNap : std::min(quiet, kLongestNap);
}

bool Simulator::carryOut(const Action& action) {
  ++outcome_.numActions;
  switch (action.kind) {
    case ActionKind::kCapture:
      pause(world_.captureSeconds);
      (void)tuner_->report(CaptureFinished{world_.captureSeconds});
      if (!world_.findings.empty()) AG_CHECK(tuner_->report(Resumed{world_.findings}).isOk(), "they are of use");
      return true;
    case ActionKind::kCompile: return startCompile(action);
    case ActionKind::kPriority:
      level_ = action.level;
      raisedLeft_ = action.seconds;
      return false;
    case ActionKind::kWait: return wait(action);
    case ActionKind::kLoad: return load(action);
    case ActionKind::kRun: running_ = action.arm; return false;
    case ActionKind::kRefine: return false;  // only groups refine
    case ActionKind::kDecide: outcome_.decidedAtStep = step_; return false;
    case ActionKind::kRollback: outcome_.rollbacks.push_back(action.reason); return false;
  }
  return false;
}

void Simulator::pause(double seconds) {
  trueSlowdown_ += seconds;
  pause_ += seconds;
  outcome_.longestPause = std::max(outcome_.longestPause, pause_);
}

bool Simulator::wait(const Action& action) {
  if (compiling_.empty()) return false;
  AG_CHECK(level_ == Level::kRaised, "training does not wait for a suspended compile");
  const double seconds = std::min(action.seconds, compileLeft_);
  pause(seconds);
  compileLeft_ -= seconds;
  (void)tuner_->report(ArmChanged{compiling_, ArmState::kCompiling, "", 0, seconds});
  if (compileLeft_ <= 0) finishCompile();
  return true;
}

bool Simulator::load(const Action& action) {
  const SimulatedArm& arm = *find(action.arm);
  const bool needsNoCache = arm.compileSeconds <= 0;
  AG_CHECK(needsNoCache || compiling_.empty() || level_ != Level::kSuspended,
           "a compile that stands still may hold a lock");
  int32_t& loaded = partsLoaded_[arm.name];
  double seconds = 0;
  while (loaded < arm.numParts && seconds < action.seconds) {
    ++loaded;
    seconds += arm.loadSeconds / arm.numParts;
  }
  pause(seconds);
  const bool isThrough = loaded == arm.numParts;
  (void)tuner_->report(ArmChanged{arm.name, isThrough ? arm.outcome : ArmState::kLoading, "simulated", 0, seconds});
  return isThrough;
}

bool Simulator::startCompile(const Action& action) {
  ++outcome_.compiles[action.arm];
  if (find(action.arm)->compileSeconds <= 0) {
    (void)tuner_->report(ArmChanged{action.arm, ArmState::kCompiled, "", 0, 0});
    return true;
  }
  AG_CHECK(compiling_.empty(), "one compile at a time");
  compiling_ = action.arm;
  compileLeft_ = find(action.arm)->compileSeconds;
  level_ = action.level;
  raisedLeft_ = action.level == Level::kRaised ? 1e9 : 0;
  return false;
}

void Simulator::finishCompile() {
  if (compiling_.empty()) return;
  const std::string arm = std::exchange(compiling_, "");
  (void)tuner_->report(ArmChanged{arm, ArmState::kCompiled, "", find(arm)->compileSeconds, 0});
}

double Simulator::noiseFactor() {
  const Noise& noise = world_.noise;
  double factor = std::exp(std::normal_distribution<double>(0, noise.sigma)(random_));
  std::uniform_real_distribution<double> uniform(0, 1);
  if (uniform(random_) < noise.tailProbability) factor *= noise.tailScale * std::pow(uniform(random_), -0.4);
  if (uniform(random_) < noise.slowModeProbability) factor *= noise.slowModeFactor;
  if (noise.burstEvery > 0 && std::fmod(static_cast<double>(step_), noise.burstEvery) < noise.burstSteps) {
    factor *= noise.burstFactor;
  }
  return factor;
}

double Simulator::drawSeconds(const std::string& arm, int32_t shape) {
  double seconds = world_.eagerSeconds * (1 + 0.5 * shape) * noiseFactor();
  if (world_.machine) seconds *= world_.machine(step_);
  if (world_.change) seconds *= world_.change(arm, step_);
  const SimulatedArm* simulated = find(arm);
  if (!simulated) return seconds;
  seconds *= simulated->ratio;
  if (outcome_.stepsByArm[arm] < simulated->warmupSteps) seconds *= simulated->warmupFactor;
  if (std::uniform_real_distribution<double>(0, 1)(random_) < simulated->slowProbability)
    seconds *= simulated->slowFactor;
  return seconds;
}

void Simulator::stepOnce() {
  const int32_t shape = world_.doShapesTakeTurns
                            ? static_cast<int32_t>(step_ % world_.numShapes)
                            : std::uniform_int_distribution<int32_t>(0, world_.numShapes - 1)(random_);
  const SimulatedArm* arm = find(running_);
  const bool isDisturbed = world_.disturbed && world_.disturbed(step_);
  pause_ = 0;
  double seconds = drawSeconds(running_, shape) * (isDisturbed ? 500 : 1);
  const double undisturbed = seconds;
  if (!compiling_.empty() && level_ != Level::kSuspended) {
    const bool isRaised = level_ == Level::kRaised && raisedLeft_ > 0;
    seconds *= isRaised ? world_.raisedInflation : world_.idleInflation;
    compileLeft_ -= seconds * (isRaised ? 0.6 : world_.idleProgress);
    raisedLeft_ -= seconds;
    ++outcome_.stepsBesideCompile;
  }
  trueSlowdown_ += seconds - undisturbed;
  if (arm && arm->ratio > 1) trueSlowdown_ += undisturbed * (1 - 1 / arm->ratio);
  trained_ += seconds;
  outcome_.maxBudgetShare = std::max(outcome_.maxBudgetShare, trueSlowdown_ / trained_);
  ++outcome_.stepsByArm[running_];
  ++step_;
  hasReported_ = quietLeft_ == 0;
  if (!hasReported_) {
    ++numSkipped_;
    skippedSeconds_ += seconds;
    if (--quietLeft_ == 0)
      (void)tuner_->report(StepsSkipped{std::exchange(numSkipped_, 0), std::exchange(skippedSeconds_, 0)});
    return;
  }
  report({running_, seconds, "s" + std::to_string(shape), arm ? arm->peakBytes : int64_t{100} << 20, isDisturbed});
  if (world_.grows && world_.grows(step_ - 1)) (void)tuner_->report(CaptureGrew{});
  if (!compiling_.empty() && compileLeft_ <= 0) finishCompile();
}

void Simulator::report(const StepFinished& step) {
  std::uniform_real_distribution<double> uniform(0, 1);
  if (world_.missingShare > 0 && uniform(random_) < world_.missingShare) {
    (void)tuner_->report(StepsSkipped{1, step.seconds});
  } else {
    unreported_.push_back(step);
  }
  const size_t late = world_.maxLate == 0 ? 0 : static_cast<size_t>(uniform(random_) * (world_.maxLate + 1));
  while (unreported_.size() > late) {
    const Status status = tuner_->report(unreported_.front());
    AG_CHECK(status.isOk(), status.message());
    unreported_.pop_front();
  }
}

Outcome Simulator::outcome() const {
  Outcome outcome = outcome_;
  outcome.chosen = tuner_->current();
  outcome.reason = tuner_->statusReason();
  outcome.wallSeconds = tuner_->ledger().wallSeconds();
  outcome.slowdownSeconds = tuner_->ledger().slowdownSeconds();
  return outcome;
}

double bestFixedSeconds(const World& world, int64_t numSteps, bool capturesOnly) {
  const double eager = static_cast<double>(numSteps) * world.eagerSeconds;
  double best = eager;
  for (const SimulatedArm& arm : world.arms) {
    const double setUp = world.captureSeconds + (capturesOnly ? 0 : arm.compileSeconds + arm.loadSeconds);
    best = std::min(best, setUp + eager * arm.ratio);
  }
  return best;
}

}  // namespace agspeed::runtime::tune::testing
