// SPDX-License-Identifier: Apache-2.0
#include "runtime/tune/group_tuner.h"

#include <algorithm>
#include <utility>

namespace agspeed::runtime::tune {
namespace {

constexpr uint64_t kFnvBasis = 0xcbf29ce484222325;
constexpr uint64_t kFnvPrime = 0x100000001b3;
constexpr std::string_view kReplacedByte = "\xef\xbf\xbd";  ///< what JSON has for a byte that is not UTF-8
constexpr int64_t kMaxQuietSyncs = 240;  ///< bounds the delay until a leaving or failed rank is noticed

uint64_t mix(uint64_t digest, std::string_view text) {
  for (const char byte : text) digest = (digest ^ static_cast<uint8_t>(byte)) * kFnvPrime;
  return digest * kFnvPrime;
}

/// Returns the configuration for a guard that makes no re-checks and only raises suspicions.
TunerConfig withoutRechecks(TunerConfig config) {
  config.guardFraction = 0;
  return config;
}

}  // namespace

StatusOr<std::unique_ptr<GroupTuner>> GroupTuner::create(TunerConfig config, std::vector<std::string> names) {
  if (names.size() < 2) return invalidArgument("tuner: a group tuner needs at least 2 ranks, not {}", names.size());
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

Status GroupTuner::report(const TunerEvent& event) {
  if (!isSettled()) {
    record_.add(event);
  } else if (const auto* step = std::get_if<StepFinished>(&event)) {
    watchStep(*step);
  } else if (const auto* skipped = std::get_if<StepsSkipped>(&event)) {
    watch_.addSteps(skipped->count, 0);
  } else if (const auto* change = std::get_if<ArmChanged>(&event)) {
    return armChangedLate(*change);
  } else if (std::holds_alternative<CaptureGrew>(event)) {
    watch_.doubt();
  } else {
    record_.add(event);
  }
  return {};
}

Status GroupTuner::armChangedLate(const ArmChanged& event) {
  if (!isDead(event.state) || event.arm != tuner_->current()) return {};
  isWatching_ = false;  // this copy now differs from the others
  AG_RETURN_IF_ERROR(tuner_->report(event));
  for (Action& action : tuner_->advance()) actions_.push_back(std::move(action));
  return {};
}

// --- rank syncs -----------------------------------------------------------------------------------------------------

std::string GroupTuner::takeRecord() {
  record_.digest = digest_;
  record_.hasCarriedOut = actions_.empty();
  sent_ = std::exchange(record_, {.sums = {record_.searches()}});
  sentText_ = sent_.toText();
  return sentText_;
}

/// Returns the record of a text. JSON cannot express infinities and bytes that are not UTF-8, so other ranks read other
/// values for these. In that case this rank also parses its own text, so that all ranks use the same values.
StatusOr<RankRecord> GroupTuner::recordOf(const std::string& text) const {
  const auto mayHave = [&](std::string_view part) { return text.find(part) != std::string::npos; };
  if (text == sentText_ && !mayHave("null") && !mayHave(kReplacedByte)) return sent_;
  return RankRecord::parse(text);
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

Status GroupTuner::sync(const std::vector<std::string>& texts) {
  std::vector<RankRecord> records;
  Status status;
  for (const std::string& text : texts) {
    StatusOr<RankRecord> record = recordOf(text);
    if (record.hasValue()) {
      records.push_back(std::move(record).value());
    } else if (status.isOk()) {
      status = record.status();
    }
  }
  if (status.isOk()) status = checkRecords(records);
  if (!status.isOk()) {
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

Status GroupTuner::checkRecords(const std::vector<RankRecord>& records) const {
  if (records.size() != names_.size()) {
    return invalidArgument("a rank sync of {} ranks got the records of {} ranks", names_.size(), records.size());
  }
  for (size_t rank = 1; rank < records.size(); ++rank) {
    if (records[rank].digest == records.front().digest) continue;
    return invalidArgument("the tuner of {} is in another state than that of {}", names_[rank], names_.front());
  }
  return {};
}

void GroupTuner::feed(const std::vector<RankRecord>& records) {
  std::optional<Adopted> adopted;
  for (const TunerEvent& sum : combineSums(records)) {
    if (const auto* resumed = std::get_if<Resumed>(&sum)) {
      findings_ = resumed->findings;
    } else if (const auto* stored = std::get_if<Adopted>(&sum)) {
      adopted = *stored;
    } else {
      (void)tuner_->report(sum);  // never refused: only Resumed and Adopted can be
    }
  }
  feedCapture(records);
  const auto first =
      std::find_if(records.begin(), records.end(), [](const RankRecord& record) { return !record.newArms.empty(); });
  if (first != records.end()) {
    for (const ArmSpec& arm : first->newArms) (void)tuner_->report(ArmAdded{arm});  // refused if it is known already
  }
  if (adopted) (void)tuner_->report(*adopted);  // refused for an arm of another version
  feedArms(records);
  feedStep(records);
}

/// A capture has finished once all ranks have finished it.
void GroupTuner::feedCapture(const std::vector<RankRecord>& records) {
  for (size_t rank = 0; rank < records.size(); ++rank) {
    if (records[rank].capture) captures_[rank] = records[rank].capture;
  }
  const bool isOver = std::all_of(captures_.begin(), captures_.end(), [](const auto& one) { return one.has_value(); });
  const bool hasGrown =
      std::any_of(records.begin(), records.end(), [](const RankRecord& record) { return record.hasGrown; });
  if (isOver) {
    double seconds = 0;
    std::string failure;
    for (size_t rank = 0; rank < captures_.size(); ++rank) {
      seconds = std::max(seconds, captures_[rank]->foregroundSeconds);
      const std::string& reason = captures_[rank]->reason;
      if (failure.empty() && !reason.empty()) failure = reason + " at " + names_[rank];
      captures_[rank].reset();
    }
    const TunerEvent result =
        failure.empty() ? TunerEvent(CaptureFinished{seconds}) : TunerEvent(CaptureFailed{failure, seconds});
    (void)tuner_->report(result);
  }
  if (hasGrown) {
    (void)tuner_->report(CaptureGrew{});
    armsOfRanks_.clear();
  }
  if ((isOver || hasGrown) && !findings_.empty()) {
    (void)tuner_->report(Resumed{std::exchange(findings_, {})});
  }
}

void GroupTuner::feedArms(const std::vector<RankRecord>& records) {
  std::map<std::string, ArmChanged> costs;
  for (size_t rank = 0; rank < records.size(); ++rank) {
    for (const auto& [name, event] : records[rank].arms) {
      ArmChanged& latest = ofRanks(name)[rank];
      if (!isDead(latest.state)) latest = event;
      ArmChanged& cost = costs[name];
      cost.backgroundSeconds = std::max(cost.backgroundSeconds, event.backgroundSeconds);
      cost.foregroundSeconds = std::max(cost.foregroundSeconds, event.foregroundSeconds);
    }
  }
  for (const auto& [name, cost] : costs) {
    ArmChanged event = combined(name);
    event.backgroundSeconds = cost.backgroundSeconds;
    event.foregroundSeconds = cost.foregroundSeconds;
    (void)tuner_->report(event);  // refused for an arm that only one rank knows
  }
}

/// Returns the arm's state for the group: dead if it is dead at one rank, else the least advanced state of all ranks.
ArmChanged GroupTuner::combined(const std::string& arm) const {
  const std::vector<ArmChanged>& ranks = armsOfRanks_.at(arm);
  ArmChanged least = ranks.front();
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (isDead(ranks[rank].state)) {
      ArmChanged out = ranks[rank];
      out.reason += " (" + names_[rank] + ")";
      return out;
    }
    if (ranks[rank].state < least.state) least = ranks[rank];
  }
  return least;
}

void GroupTuner::feedStep(const std::vector<RankRecord>& records) {
  StepFinished slowest;
  bool isOneStep = !hasSwitched_;
  for (const RankRecord& record : records) {
    isOneStep = isOneStep && record.step && record.step->arm == records.front().step->arm;
    if (!record.step) continue;
    slowest.seconds = std::max(slowest.seconds, record.step->seconds);
    slowest.peakBytes = std::max(slowest.peakBytes, record.step->peakBytes);
    slowest.disturbed = slowest.disturbed || record.step->disturbed;
  }
  if (slowest.seconds <= 0) return;
  if (!isOneStep) return void(tuner_->report(StepsSkipped{1, slowest.seconds}));
  slowest.arm = records.front().step->arm;
  slowest.shape = records.front().step->shape;
  (void)tuner_->report(slowest);  // refused for an unknown arm
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
    track(action);
    actions_.push_back(std::move(action));
  }
  if (isRechecking_ && !tuner_->isRechecking()) {
    isRechecking_ = false;
    isWatching_ = tuner_->decision()->arm != kEagerArm;
  }
  const int64_t quiet = asked.empty() && !isRechecking_ ? tuner_->quietSteps() : 0;
  numQuiet_ = quiet == Tuner::kForever ? kMaxQuietSyncs : std::min(quiet, kMaxQuietSyncs);
}

/// Adds an action of the tuner to the digest. Also updates the states of arms that begin to compile or to load.
void GroupTuner::track(const Action& action) {
  digest_ = mix(mix(digest_, toString(action.kind)), action.arm);
  if (action.kind == ActionKind::kRun) hasSwitched_ = true;
  if (action.kind != ActionKind::kCompile && action.kind != ActionKind::kLoad) return;
  const ArmState begun = action.kind == ActionKind::kCompile ? ArmState::kCompiling : ArmState::kLoading;
  for (ArmChanged& event : ofRanks(action.arm)) event.state = begun;
}

std::vector<ArmChanged>& GroupTuner::ofRanks(const std::string& arm) {
  const auto [entry, isNew] =
      armsOfRanks_.try_emplace(arm, names_.size(), ArmChanged{arm, ArmState::kWaiting, "", 0, 0});
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

void GroupTuner::watchStep(const StepFinished& step) {
  if (!isWatching_) return;
  watch_.addSteps(1, 0);
  if (step.disturbed || step.arm != tuner_->current()) return;
  const auto [entry, isNew] = watchedShapes_.emplace(step.shape, static_cast<int32_t>(watchedShapes_.size()));
  watch_.addSteadyStep(entry->second, step.seconds);
}

void GroupTuner::recheck() {
  record_ = {.leaving = std::move(record_.leaving), .sums = {record_.searches()}};
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
