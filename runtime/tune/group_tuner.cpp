// SPDX-License-Identifier: Apache-2.0
#include "runtime/tune/group_tuner.h"

#include <algorithm>
#include <utility>

namespace agspeed::runtime::tune {
namespace {

constexpr uint64_t kFnvBasis = 0xcbf29ce484222325;
constexpr uint64_t kFnvPrime = 0x100000001b3;
constexpr int64_t kMaxQuietMeetings = 240;  ///< bounds the delay until a leaving or failed rank is noticed

uint64_t mix(uint64_t digest, std::string_view text) {
  for (const char byte : text) digest = (digest ^ static_cast<uint8_t>(byte)) * kFnvPrime;
  return digest * kFnvPrime;
}

bool isDead(ArmState state) {
  return state == ArmState::kRejected || state == ArmState::kFailed || state == ArmState::kSkipped;
}

template <typename Member>
auto highest(const std::vector<RankRecord>& records, Member RankRecord::* member) {
  auto found = records.front().*member;
  for (const RankRecord& record : records) found = std::max(found, record.*member);
  return found;
}

/// The first member by rank that is not empty; an empty one if there is none.
template <typename Member>
const Member& firstSaid(const std::vector<RankRecord>& records, Member RankRecord::* member) {
  for (const RankRecord& record : records) {
    if (!(record.*member).empty()) return record.*member;
  }
  return records.front().*member;
}

/// For a guard that judges nothing and only raises suspicions.
TunerConfig withoutRechecks(TunerConfig config) {
  config.guardFraction = 0;
  return config;
}

}  // namespace

StatusOr<std::unique_ptr<GroupTuner>> GroupTuner::create(TunerConfig config, std::vector<std::string> names) {
  if (names.size() < 2) return invalidArgument("tuner: a group of {} ranks needs none", names.size());
  AG_ASSIGN_OR_RETURN(std::unique_ptr<Tuner> tuner, Tuner::create(config));
  return std::unique_ptr<GroupTuner>(new GroupTuner(config, std::move(tuner), std::move(names)));
}

GroupTuner::GroupTuner(const TunerConfig& config, std::unique_ptr<Tuner> tuner, std::vector<std::string> names)
    : tuner_(std::move(tuner)),
      names_(std::move(names)),
      captures_(names_.size()),
      digest_(kFnvBasis),
      watch_(withoutRechecks(config)),
      mayWatch_(config.guardFraction > 0 && config.mode != Mode::kDeterministic) {}

// --- events of this rank --------------------------------------------------------------------------------------------

void GroupTuner::captureGrew() {
  if (isSettled()) return watch_.doubt();
  record_.hasGrown = true;
}

void GroupTuner::expectLoads(double foregroundSeconds) {
  record_.loadEstimate = std::max(record_.loadEstimate, foregroundSeconds);
}

Status GroupTuner::armChanged(const ArmEvent& event) {
  if (isSettled()) {
    if (!isDead(event.state) || event.arm != tuner_->current()) return {};
    isWatching_ = false;  // this copy now differs from the others
    AG_RETURN_IF_ERROR(tuner_->armChanged(event));
    for (Action& action : tuner_->advance()) actions_.push_back(std::move(action));
    return {};
  }
  const auto [entry, isNew] = record_.arms.try_emplace(event.arm, event);
  if (isNew) return {};
  ArmEvent& sum = entry->second;
  sum.foregroundSeconds += event.foregroundSeconds;
  sum.backgroundSeconds += event.backgroundSeconds;
  if (isDead(sum.state)) return {};
  sum.state = event.state;
  sum.reason = event.reason;
  return {};
}

Status GroupTuner::addArm(ArmSpec spec) {
  record_.newArms.push_back(std::move(spec));
  return {};
}

Status GroupTuner::stepFinished(const StepReport& step) {
  if (isSettled()) {
    watchStep(step);
    return {};
  }
  if (!record_.step) {
    record_.step = step;
    return {};
  }
  StepReport& sum = *record_.step;
  sum.disturbed = sum.disturbed || step.disturbed || sum.arm != step.arm;
  sum.arm = step.arm;
  sum.seconds += step.seconds;
  sum.shape += "+" + step.shape;
  sum.peakBytes = std::max(sum.peakBytes, step.peakBytes);
  return {};
}

void GroupTuner::stepsSkipped(int64_t count, double seconds) {
  if (isSettled()) return watch_.addSteps(count, 0);
  record_.numSkipped += count;
  record_.skippedSeconds += seconds;
}

Status GroupTuner::resume(std::string_view findings) {
  record_.findings = findings;
  return {};
}

Status GroupTuner::adopt(const std::string& arm) {
  record_.adopted = arm;
  return {};
}

// --- meetings -------------------------------------------------------------------------------------------------------

std::string GroupTuner::takeRecord() {
  record_.digest = digest_;
  record_.hasCarriedOut = actions_.empty();
  std::string text = record_.toText();
  const int64_t numSearches = record_.numSearches;
  record_ = {};
  record_.numSearches = numSearches;
  return text;
}

std::vector<Action> GroupTuner::takeActions() { return std::exchange(actions_, {}); }

void GroupTuner::end(std::string reason) {
  if (isRechecking_) {
    isRechecking_ = isWatching_ = false;
    tuner_->abandonRecheck();
    actions_.push_back({.kind = ActionKind::kRun, .arm = tuner_->decision()->arm});
  } else if (!isSettled()) {
    over_ = std::move(reason);
  }
}

Status GroupTuner::meet(const std::vector<std::string>& texts) {
  std::vector<RankRecord> records;
  Status status;
  for (const std::string& text : texts) {
    StatusOr<RankRecord> record = RankRecord::parse(text);
    if (record) {
      records.push_back(std::move(record).value());
    } else if (status) {
      status = record.status();
    }
  }
  if (status) status = checkMeeting(records);
  if (!status) {
    end(status.message());
    return status;
  }
  for (size_t rank = 0; rank < records.size(); ++rank) {
    if (records[rank].leaving.empty()) continue;
    end(names_[rank] + " tunes no longer: " + records[rank].leaving);
    return {};
  }
  for (const std::string& text : texts) digest_ = mix(digest_, text);
  numQuiet_ = 0;
  feed(records);
  const bool haveAllCarriedOut =
      std::all_of(records.begin(), records.end(), [](const RankRecord& record) { return record.hasCarriedOut; });
  if (haveAllCarriedOut) plan();
  return {};
}

Status GroupTuner::checkMeeting(const std::vector<RankRecord>& records) const {
  if (records.size() != names_.size()) {
    return invalidArgument("a meeting of {} ranks has the records of {}", names_.size(), records.size());
  }
  for (size_t rank = 1; rank < records.size(); ++rank) {
    if (records[rank].digest == records.front().digest) continue;
    return invalidArgument("the tuner of {} is in another state than that of {}", names_[rank], names_.front());
  }
  return {};
}

void GroupTuner::feed(const std::vector<RankRecord>& records) {
  feedStart(records);
  tuner_->stepsSkipped(highest(records, &RankRecord::numSkipped), highest(records, &RankRecord::skippedSeconds));
  feedCapture(records);
  for (const ArmSpec& arm : firstSaid(records, &RankRecord::newArms))
    (void)tuner_->addArm(arm);  // an arm that is
                                // already known may
                                // fail
  if (const std::string& adopted = firstSaid(records, &RankRecord::adopted); !adopted.empty()) {
    (void)tuner_->adopt(adopted);  // may fail for an arm of another version
  }
  feedArms(records);
  feedStep(records);
}

void GroupTuner::feedStart(const std::vector<RankRecord>& records) {
  tuner_->started(highest(records, &RankRecord::startUpSeconds));
  tuner_->paused(highest(records, &RankRecord::pausedSeconds));
  tuner_->shareBudget(highest(records, &RankRecord::numSearches));
  const double capture = highest(records, &RankRecord::captureEstimate);
  if (capture >= 0) tuner_->expectCapture(capture);
  const double loads = highest(records, &RankRecord::loadEstimate);
  if (loads > 0) tuner_->expectLoads(loads);
}

/// A capture has finished once all ranks have finished it.
void GroupTuner::feedCapture(const std::vector<RankRecord>& records) {
  for (size_t rank = 0; rank < records.size(); ++rank) {
    if (records[rank].capture) captures_[rank] = records[rank].capture;
  }
  if (const std::string& said = firstSaid(records, &RankRecord::findings); !said.empty()) findings_ = said;
  const bool isOver = std::all_of(captures_.begin(), captures_.end(), [](const auto& one) { return one.has_value(); });
  const bool hasGrown =
      std::any_of(records.begin(), records.end(), [](const RankRecord& record) { return record.hasGrown; });
  if (isOver) {
    double seconds = 0;
    std::string failure;
    for (size_t rank = 0; rank < captures_.size(); ++rank) {
      seconds = std::max(seconds, captures_[rank]->seconds);
      if (failure.empty() && !captures_[rank]->failure.empty())
        failure = captures_[rank]->failure + " at " + names_[rank];
      captures_[rank].reset();
    }
    failure.empty() ? tuner_->captureFinished(seconds) : tuner_->captureFailed(failure, seconds);
  }
  if (hasGrown) {
    tuner_->captureGrew();
    armsOfRanks_.clear();
  }
  if ((isOver || hasGrown) && !findings_.empty()) (void)tuner_->resume(std::exchange(findings_, {}));
}

void GroupTuner::feedArms(const std::vector<RankRecord>& records) {
  std::map<std::string, ArmEvent> costs;
  for (size_t rank = 0; rank < records.size(); ++rank) {
    for (const auto& [name, event] : records[rank].arms) {
      ArmEvent& latest = ofRanks(name)[rank];
      if (!isDead(latest.state)) latest = event;
      ArmEvent& cost = costs[name];
      cost.backgroundSeconds = std::max(cost.backgroundSeconds, event.backgroundSeconds);
      cost.foregroundSeconds = std::max(cost.foregroundSeconds, event.foregroundSeconds);
    }
  }
  for (const auto& [name, cost] : costs) {
    ArmEvent event = combined(name);
    event.backgroundSeconds = cost.backgroundSeconds;
    event.foregroundSeconds = cost.foregroundSeconds;
    (void)tuner_->armChanged(event);  // may fail for an arm that only one rank knows
  }
}

/// The arm is out if it is out at one rank; else it has the least advanced state of all ranks.
ArmEvent GroupTuner::combined(const std::string& arm) const {
  const std::vector<ArmEvent>& ranks = armsOfRanks_.at(arm);
  ArmEvent least = ranks.front();
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (isDead(ranks[rank].state)) {
      ArmEvent out = ranks[rank];
      out.reason += " (" + names_[rank] + ")";
      return out;
    }
    if (ranks[rank].state < least.state) least = ranks[rank];
  }
  return least;
}

void GroupTuner::feedStep(const std::vector<RankRecord>& records) {
  StepReport slowest;
  bool isOneStep = !hasSwitched_;
  for (const RankRecord& record : records) {
    isOneStep = isOneStep && record.step && record.step->arm == records.front().step->arm;
    if (!record.step) continue;
    slowest.seconds = std::max(slowest.seconds, record.step->seconds);
    slowest.peakBytes = std::max(slowest.peakBytes, record.step->peakBytes);
    slowest.disturbed = slowest.disturbed || record.step->disturbed;
  }
  if (slowest.seconds <= 0) return;
  if (!isOneStep) return tuner_->stepsSkipped(1, slowest.seconds);
  slowest.arm = records.front().step->arm;
  slowest.shape = records.front().step->shape;
  (void)tuner_->stepFinished(slowest);  // may fail for an unknown arm
}

void GroupTuner::plan() {
  hasSwitched_ = false;
  std::vector<Action> asked;
  if (isRefining_ && tuner_->phase() == Phase::kSettled) {
    const Decision& decision = *tuner_->decision();
    asked.push_back({.kind = ActionKind::kDecide, .arm = decision.arm, .reason = decision.reason});
    isDecided_ = true;
    startWatch();
  } else {
    asked = tuner_->advance();
  }
  isRefining_ = false;
  for (Action& action : asked) {
    if (action.kind == ActionKind::kDecide && !isDecided_) {
      action.kind = ActionKind::kRefine;
      isRefining_ = true;
    }
    note(action);
    actions_.push_back(std::move(action));
  }
  if (isRechecking_ && !tuner_->isRechecking()) {
    isRechecking_ = false;
    isWatching_ = tuner_->decision()->arm != kEagerArm;
  }
  const int64_t quiet = asked.empty() && !isRechecking_ ? tuner_->quietSteps() : 0;
  numQuiet_ = quiet == Tuner::kForever ? kMaxQuietMeetings : std::min(quiet, kMaxQuietMeetings);
}

/// Updates the digest and the state of ranks by an action that the tuner asks for.
void GroupTuner::note(const Action& action) {
  digest_ = mix(mix(digest_, toString(action.kind)), action.arm);
  if (action.kind == ActionKind::kRun) hasSwitched_ = true;
  if (action.kind != ActionKind::kCompile && action.kind != ActionKind::kLoad) return;
  const ArmState begun = action.kind == ActionKind::kCompile ? ArmState::kCompiling : ArmState::kLoading;
  for (ArmEvent& event : ofRanks(action.arm)) event.state = begun;
}

std::vector<ArmEvent>& GroupTuner::ofRanks(const std::string& arm) {
  const auto [entry, isNew] = armsOfRanks_.try_emplace(arm, names_.size(), ArmEvent{arm, ArmState::kWaiting, "", 0, 0});
  return entry->second;
}

// --- after the decision ---------------------------------------------------------------------------------------------

void GroupTuner::startWatch() {
  isWatching_ = mayWatch_ && tuner_->decision()->arm != kEagerArm;
  for (const std::string& shape : tuner_->shapes()) {
    watchedShapes_.emplace(shape, static_cast<int32_t>(watchedShapes_.size()));
  }
  watch_.start(tuner_->decision()->isFromDatabase, tuner_->stepLimits());
}

void GroupTuner::watchStep(const StepReport& step) {
  if (!isWatching_) return;
  watch_.addSteps(1, 0);
  if (step.disturbed || step.arm != tuner_->current()) return;
  const auto [entry, isNew] = watchedShapes_.emplace(step.shape, static_cast<int32_t>(watchedShapes_.size()));
  watch_.addSteadyStep(entry->second, step.seconds);
}

void GroupTuner::recheck() {
  record_ = {.leaving = std::move(record_.leaving), .numSearches = record_.numSearches};
  if (!isSuspicious()) leave("its candidate failed");
  isRechecking_ = true;
  watch_.forgoBurst();
  tuner_->suspect();
}

int64_t GroupTuner::quietSteps() const {
  if (!isSettled()) return 0;
  return isWatching_ ? watch_.quietSteps(1) : Tuner::kForever;
}

}  // namespace agspeed::runtime::tune
