// SPDX-License-Identifier: Apache-2.0
#include "runtime/tune/arms/arm_set.h"

#include "runtime/base/format.h"
#include "runtime/tune/arms/judgement.h"
#include "runtime/tune/drift_guard.h"

namespace agspeed::runtime::tune {
namespace {

constexpr double kUnseenRatio = 10.0;  ///< an arm that never ran is assumed to be this many times slower than eager

}  // namespace

ArmSet::ArmSet() {
  Arm& eager = arms_.emplace_back();
  eager.spec.name = kEagerArm;
  eager.state = ArmState::kReady;
  eager.verdict = Verdict::kAccepted;
  eager.reason = "always available";
}

std::optional<size_t> ArmSet::find(const std::string& name) const {
  for (size_t i = 0; i < arms_.size(); ++i) {
    if (arms_[i].spec.name == name) return i;
  }
  return std::nullopt;
}

std::optional<size_t> ArmSet::leastMeasured() const {
  std::optional<size_t> least;
  for (size_t i = 1; i < arms_.size(); ++i) {
    if (arms_[i].isMeasurable() && (!least || arms_[i].numBlocks < arms_[*least].numBlocks)) least = i;
  }
  return least;
}

bool ArmSet::isAnyCompiling() const {
  return first([](const Arm& arm) { return arm.state == ArmState::kCompiling; }).has_value();
}

Status ArmSet::add(ArmSpec spec, std::string whySkipped) {
  if (spec.name.empty() || find(spec.name)) {
    return invalidArgument("tuner: arm \"" + spec.name + "\" has no name or exists already");
  }
  Arm& arm = arms_.emplace_back();
  arm.spec = std::move(spec);
  if (!whySkipped.empty()) arm.skip(std::move(whySkipped));
  takeEarlier(arm);
  return {};
}

void ArmSet::skipWaiting(const std::string& reason) {
  for (Arm& arm : arms_) {
    if (arm.state == ArmState::kWaiting) arm.skip(reason);
  }
}

void ArmSet::forgetAll() {
  earlier_.clear();
  incumbent_ = kEager;
  for (size_t i = 1; i < arms_.size(); ++i) {
    Arm& arm = arms_[i];
    if (arm.isDead()) continue;
    if (arm.state != ArmState::kCompiling) arm.state = ArmState::kWaiting;
    arm.forget();
  }
}

void ArmSet::reopenReady() {
  for (size_t i = 1; i < arms_.size(); ++i) {
    if (arms_[i].isUsable()) arms_[i].reopen();
  }
}

// --- winning and losing ---------------------------------------------------------------------------------------------

void ArmSet::choose(size_t arm, const std::string& reason) {
  incumbent_ = arm;
  stored_.reset();
  arms_[arm].accept(reason, /*isEnough=*/true);
  for (Arm& other : arms_) {
    if (other.state == ArmState::kCompiling) other.state = ArmState::kWaiting;
  }
}

void ArmSet::lose(size_t arm, std::string reason) {
  ++numLosses_;
  arms_[arm].verdict = Verdict::kLost;
  arms_[arm].reason = std::move(reason);
  if (incumbent_ == arm) incumbent_ = kEager;
}

void ArmSet::loseTo(size_t arm, size_t winner, const std::string& evidence) {
  lose(arm, "no better than " + arms_[winner].spec.name + evidence);
  arms_[arm].beatenBy = arms_[winner].spec.name;
}

void ArmSet::disqualify(size_t arm, std::string reason) {
  lose(arm, std::move(reason));
  reviveBeatenBy(arm);
}

void ArmSet::reviveBeatenBy(size_t winner, double limit) {
  for (Arm& arm : arms_) {
    const Comparison& pairs = arm.versusEager;
    if (arm.beatenBy != arms_[winner].spec.name || (pairs.numPairs() > 0 && pairs.ratioQuantile(0.5) >= limit))
      continue;
    arm.beatenBy.clear();
    arm.verdict = Verdict::kOpen;
  }
}

void ArmSet::dismiss(size_t arm, bool isDecided) {
  if (stored_ == arm) stored_.reset();
  for (Arm& other : arms_) {
    if (other.duelAgainst == arms_[arm].spec.name) other.duelAgainst.clear();
  }
  if (isDecided) return;
  if (incumbent_ == arm) incumbent_ = kEager;
  reviveBeatenBy(arm);
}

std::optional<size_t> ArmSet::nextChallenger(const TunerConfig& config) {
  for (size_t i = 1; i < arms_.size(); ++i) {
    if (i == incumbent_ || !arms_[i].isUsable() || arms_[i].verdict != Verdict::kAccepted) continue;
    if (!hasProven()) {
      incumbent_ = i;
    } else if (cannotBeat(arms_[i], arms_[incumbent_], config)) {
      loseTo(i, incumbent_, "");
    } else if (cannotBeat(arms_[incumbent_], arms_[i], config)) {
      loseTo(incumbent_, i, "");
      incumbent_ = i;
      return nextChallenger(config);
    } else {
      return i;
    }
  }
  return std::nullopt;
}

std::optional<size_t> ArmSet::findRival(size_t arm, const TunerConfig& config) const {
  for (size_t i = 1; i < arms_.size(); ++i) {
    if (i != arm && losesTo(arms_[arm], arms_[i], config)) return i;
  }
  return std::nullopt;
}

double ArmSet::bestRatio() const {
  double best = 1;
  for (const Arm& arm : arms_) best = std::min(best, cautiousRatio(arm));
  return best;
}

std::string ArmSet::describeEager(bool isIncomparable, const TunerConfig& config) const {
  if (arms_.size() == 1) return "there is no candidate but eager";
  if (isIncomparable) return "hardly any batch has the shape of an earlier one: nothing can be compared with eager";
  if (first([](const Arm& arm) { return arm.isUsable() || arm.verdict == Verdict::kLost; })) {
    return formatText("no candidate is at least {:.1f} % faster than eager", config.minGain * 100);
  }
  const std::string& reason = arms_[1].reason;
  const bool hasOthers = first([&](const Arm& arm) { return arm.reason != reason; }).has_value();
  return "no candidate could be used" + (hasOthers || reason.empty() ? "; see the reason of each" : ": " + reason);
}

// --- step times -----------------------------------------------------------------------------------------------------

double ArmSet::eagerSeconds() const { return eager().seconds.empty() ? 0 : eager().seconds.median(); }

double ArmSet::stepSeconds() const {
  const RollingWindow& own = arms_[incumbent_].seconds;
  return eager().seconds.empty() && !own.empty() ? own.median() : eagerSeconds();
}

double ArmSet::excessSeconds(size_t arm) const {
  const Arm& tested = arms_[arm];
  if (!tested.seconds.empty()) return std::max(0.0, tested.seconds.median() - eagerSeconds());
  return tested.numSteps > 0 ? std::max(0.0, tested.lastSeconds - eagerSeconds()) : kUnseenRatio * eagerSeconds();
}

std::map<int32_t, double> ArmSet::stepLimits() const {
  std::map<int32_t, double> limits;
  for (const auto& [shape, record] : arms_[incumbent_].shapes) {
    const std::optional<double> chosen = arms_[incumbent_].typicalSeconds(shape);
    const std::optional<double> own = eager().typicalSeconds(shape);
    if (chosen && own) limits[shape] = DriftGuard::stepLimit(*chosen, *own);
  }
  return limits;
}

// --- findings -------------------------------------------------------------------------------------------------------

Status ArmSet::resume(std::string_view findings) {
  AG_ASSIGN_OR_RETURN(earlier_, parseFindings(findings));
  for (size_t arm = 1; arm < arms_.size(); ++arm) takeEarlier(arms_[arm]);
  return {};
}

/// Gives the arm its earlier findings. If it lost to an arm that does not exist here, its verdict is open, because no
/// other arm could reopen it.
void ArmSet::takeEarlier(Arm& arm) {
  const auto found = std::find_if(earlier_.begin(), earlier_.end(),
                                  [&](const ArmFindings& findings) { return findings.name == arm.spec.name; });
  if (found == earlier_.end()) return;
  ArmFindings findings = std::move(*found);
  earlier_.erase(found);
  if (arm.isDead() || arm.verdict != Verdict::kOpen || arm.versusEager.numPairs() > 0) return;
  if (!findings.beatenBy.empty() && !find(findings.beatenBy)) findings.isLost = false;
  restore(findings, arm);
}

std::string ArmSet::findings() const {
  std::vector<ArmFindings> found = earlier_;
  for (const Arm& arm : arms_) {
    ArmFindings findings = findingsOf(arm);
    if (!findings.isEmpty()) found.push_back(std::move(findings));
  }
  return toText(found);
}

int32_t ArmSet::numResumedPairs() const {
  int32_t count = 0;
  for (const Arm& arm : arms_) count += arm.versusEager.numEarlier() + arm.duel.numEarlier();
  return count;
}

}  // namespace agspeed::runtime::tune
