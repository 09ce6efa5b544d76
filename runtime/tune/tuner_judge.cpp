// SPDX-License-Identifier: Apache-2.0
// Evaluates the measurements of an arm after each block.
//
// An arm is *accepted* if its whole interval lies below 1 - minGain and its summed times do not contradict. It *loses*
// if it needs too much memory, is far behind the best, cannot be better than another one by minGain, cannot reach the
// gain any more, or has used up its pairs. Accepting is strict, because a wrong acceptance makes training slower. The
// other rules stop as soon as more pairs would hardly change the user's gain. Pairs of an earlier process count until
// new ones contradict them; an arm is never judged by them alone.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "runtime/tune/tuner.h"

namespace agspeed::runtime::tune {
namespace {

/// Confidence of intervals that end a measurement before it is precise; it is high because they are checked after every
/// block.
constexpr double kEarlyConfidence = 0.999;
/// Evidence of signs that ends a measurement at once: 0.2 % of error for a gain, 5 % for the lack of one, however often
/// it is checked.
constexpr double kGainEvidence = 500;
constexpr double kFutileEvidence = 20;
constexpr double kObjectionConfidence = 0.9;
/// If these are wrong, a gain is missed, but no step becomes slower than eager.
constexpr double kFutileConfidence = 0.95;
constexpr double kChoiceConfidence = 0.9;
constexpr int32_t kOwnPairs = 4;     ///< own pairs needed to judge an arm with pairs of an earlier process
constexpr int32_t kDropPairs = 4;    ///< two blocks, before an arm that is far behind is dropped
constexpr int32_t kChoicePairs = 8;  ///< four blocks, before an arm is dropped for a rival

}  // namespace

void Tuner::finishBlock() {
  const Trial trial = *trial_;
  trial_.reset();
  ++numFindings_;
  switch (trial.kind) {
    case TrialKind::kVersusEager: ++arms_[trial.arm].numBlocks; return judgeVersusEager(trial.arm);
    case TrialKind::kDuel: return judgeDuel(trial.arm);
    case TrialKind::kRecheck: return guard_.finishBlock();
  }
}

void Tuner::judgeVersusEager(size_t index) {
  Arm& arm = arms_[index];
  const bool isKnownHere = arm.versusEager.numEarlier() == 0 || arm.versusEager.numOwn() >= kOwnPairs;
  if (!isKnownHere && 2 * arm.numBlocks < config_.maxPairs) return;
  if (arm.versusEager.dropContradicted()) log("forget", arm.spec.name, "pairs of this run contradict an earlier one's");
  if (const std::optional<std::string> objection = memoryObjection(arm, eagerPeaks(), config_))
    return disqualify(index, *objection);
  const Interval ratio = arm.versusEager.ratio(config_.confidence);
  // Uses quartiles instead of medians on both sides: one slow step among four pairs must not drop the best arm.
  if (ratio.count >= kDropPairs && arm.versusEager.ratioQuantile(0.25) > config_.dropRatio * bestRatio()) {
    return lose(index, formatText("dropped early: {}; the best candidate has {:.2f} times", describeSpeed(ratio),
                                  1 / bestRatio()));
  }
  if (const std::optional<size_t> better = findBetter(index)) {
    return loseTo(index, *better, ": " + describeSpeed(ratio));
  }
  const double limit = 1 - config_.minGain;
  const bool isPrecise = ratio.count >= config_.minPairs && ratio.halfWidth() <= config_.targetHalfWidth;
  // A block yields two pairs or more, unless few runs pair up because there are many shapes.
  const bool isSpent = ratio.count >= config_.maxPairs || 2 * arm.numBlocks >= config_.maxPairs;
  if (isFutile(arm) || ((isPrecise || isSpent) && ratio.high >= limit)) {
    lose(index, ratio.count == 0 ? "no batch had the shape of one that eager ran shortly before or after"
                                 : "not clearly faster than eager: " + describeSpeed(ratio));
    // Others lost to this arm while it looked better. Arms that looked faster than eager deserve their own pairs.
    return reviveBeatenBy(arm.spec.name, limit);
  }
  const bool isCertain = isClearGain(arm, config_.minGain) || arm.versusEager.ratio(kEarlyConfidence).high < limit;
  const bool isEarlyWin = ratio.count >= config_.minPairs && isCertain;
  if (!isPrecise && !isSpent && !isEarlyWin) return;
  // Medians do not show rare slow steps. Sums do, with far more noise, so their objection waits for all pairs and is
  // then judged at a low confidence.
  const Interval sums = arm.versusEager.sumRatio(kObjectionConfidence);
  if (sums.estimate > 1 && !isSpent) return;
  if (sums.low > 1) {
    return disqualify(index,
                      "faster in most steps but not in sum, as it has slow steps: in sum " + describeSpeed(sums));
  }
  if (!isKnownHere) return lose(index, "too few batches had the shape of one that eager ran shortly before or after");
  accept(index, ratio);
  // In max mode the chosen arm is measured further, because rare slow steps show only in many pairs.
  arm.isConfirmed = config_.mode != Mode::kMax || isPrecise || isSpent || ratio.count >= config_.maxPairs / 2;
}

/// Whether the interval will hardly lie below 1 - minGain even with all pairs. It will then span the quantiles 1/2 +- z
/// / (2 sqrt(maxPairs)) of the ratios; the present pairs give an estimate of these.
bool Tuner::isFutile(const Arm& arm) const {
  const Comparison& pairs = arm.versusEager;
  if (pairs.evidenceAbove(1 - config_.minGain) >= kFutileEvidence) return true;
  if (pairs.numPairs() < config_.minPairs) return false;
  const double distance = std::min(0.5, twoSidedNormalQuantile(config_.confidence) / (2 * std::sqrt(config_.maxPairs)));
  const double reach = (pairs.ratioQuantile(0.5 + distance) - pairs.ratioQuantile(0.5 - distance)) / 2;
  return pairs.ratio(kFutileConfidence).low > 1 - config_.minGain - std::max(config_.targetHalfWidth, reach);
}

/// Whether nearly all pairs show a gain of at least `gain`. Ten of ten are enough, which takes a large gain or a quiet
/// machine.
bool Tuner::isClearGain(const Arm& arm, double gain) {
  return arm.versusEager.evidenceBelow(1 - gain) >= kGainEvidence;
}

/// Whether the arm's slow steps cost at least half of the gain of its typical step, judged by all its steps, not only
/// by pairs.
bool Tuner::hasSlowSteps(const Arm& arm) const {
  const auto excess = [](const RollingWindow& seconds) {
    const std::vector<double>& values = seconds.values();
    return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size()) / seconds.median();
  };
  const RollingWindow& eager = arms_[kEager].seconds;
  const double ratio = arm.versusEager.ratio(config_.confidence).estimate;
  return !eager.empty() && ratio * excess(arm.seconds) > (1 + ratio) / 2 * excess(eager);
}

/// Whether the arm looks no better than its rival and can hardly be better by minGain. The choice between them then
/// makes no difference, and the rival wins.
bool Tuner::cannotBeat(size_t arm, size_t rival) const {
  const Interval mine = arms_[arm].versusEager.ratio(kChoiceConfidence);
  const Interval other = arms_[rival].versusEager.ratio(kChoiceConfidence);
  if (std::min(mine.count, other.count) < kChoicePairs || mine.estimate < other.estimate) return false;
  return differenceLow(mine, other) > -config_.minGain * other.estimate;
}

std::optional<size_t> Tuner::findBetter(size_t index) const {
  for (size_t i = 1; i < arms_.size(); ++i) {
    if (i == index || !arms_[i].isContender() || !cannotBeat(index, i)) continue;
    if (arms_[i].versusEager.sumRatio(kObjectionConfidence).estimate < 1) return i;
  }
  return std::nullopt;
}

void Tuner::accept(size_t index, const Interval& ratio) {
  Arm& arm = arms_[index];
  arm.verdict = Verdict::kAccepted;
  arm.reason = "faster than eager: " + describeSpeed(ratio);
  if (incumbent_ == kEager) incumbent_ = index;
  if (arm.needsBackground()) beginFirstSteps(arm);
}

void Tuner::lose(size_t index, std::string reason) {
  ++numFindings_;
  arms_[index].verdict = Verdict::kLost;
  arms_[index].reason = std::move(reason);
  if (incumbent_ == index) incumbent_ = kEager;
}

void Tuner::loseTo(size_t index, size_t winner, const std::string& evidence) {
  lose(index, "no better than " + arms_[winner].spec.name + evidence);
  arms_[index].beatenBy = arms_[winner].spec.name;
}

/// Out for another reason than its typical speed: arms that lost to it in speed are reopened.
void Tuner::disqualify(size_t index, std::string reason) {
  lose(index, std::move(reason));
  reviveBeatenBy(arms_[index].spec.name);
}

void Tuner::reviveBeatenBy(const std::string& name, double limit) {
  for (Arm& arm : arms_) {
    if (arm.beatenBy != name || arm.versusEager.ratio(config_.confidence).estimate >= limit) continue;
    arm.beatenBy.clear();
    arm.verdict = Verdict::kOpen;
  }
}

/// The accepted arm to compare with the incumbent next. No duel is needed if the pairs with eager settle the choice.
std::optional<size_t> Tuner::nextChallenger() {
  for (size_t i = 1; i < arms_.size(); ++i) {
    if (i == incumbent_ || !arms_[i].isUsable() || arms_[i].verdict != Verdict::kAccepted) continue;
    if (incumbent_ == kEager) {
      incumbent_ = i;
    } else if (cannotBeat(i, incumbent_)) {
      loseTo(i, incumbent_, "");
    } else if (cannotBeat(incumbent_, i)) {
      loseTo(incumbent_, i, "");
      incumbent_ = i;
      return nextChallenger();
    } else {
      return i;
    }
  }
  return std::nullopt;
}

void Tuner::judgeDuel(size_t index) {
  arms_[index].duel.dropContradicted();
  const Interval ratio = arms_[index].duel.ratio(kChoiceConfidence);
  if (ratio.count < kChoicePairs) return;
  const bool isWinner = ratio.estimate < 1;
  // How much better the loser could still be; it has to be negligible.
  const double gain = isWinner ? 1 - 1 / ratio.high : 1 - ratio.low;
  if (gain >= config_.minGain && ratio.count < config_.maxPairs) return;
  const size_t winner = isWinner ? index : incumbent_;
  Interval losers = ratio;
  if (isWinner) losers = {1 / ratio.estimate, 1 / ratio.high, 1 / ratio.low, ratio.count};
  loseTo(isWinner ? incumbent_ : index, winner, " in direct pairs: " + describeSpeed(losers, "its"));
  incumbent_ = winner;
}

/// The lowest ratio to eager measured so far, as a cautious estimate; 1 is eager itself.
double Tuner::bestRatio() const {
  double best = 1;
  for (const Arm& arm : arms_) {
    if (!arm.isUsable() || arm.versusEager.numPairs() < kDropPairs) continue;
    best = std::min(best, arm.versusEager.ratioQuantile(0.75));
  }
  return best;
}

std::string Tuner::describeGain(size_t arm) const {
  const Interval ratio = arms_[arm].versusEager.ratio(config_.confidence);
  return arms_[arm].spec.name + " has " + describeSpeed(ratio);
}

std::string Tuner::describeEager() const {
  if (arms_.size() == 1) return "there is no candidate but eager";
  const bool isAnyMeasured = std::any_of(
      arms_.begin() + 1, arms_.end(), [](const Arm& arm) { return arm.isUsable() || arm.verdict == Verdict::kLost; });
  if (!isAnyMeasured && !isIncomparable()) {
    const bool isOneReason =
        std::all_of(arms_.begin() + 1, arms_.end(), [this](const Arm& arm) { return arm.reason == arms_[1].reason; });
    return "no candidate could be used" +
           (isOneReason && !arms_[1].reason.empty() ? ": " + arms_[1].reason : "; see the reason of each");
  }
  if (isIncomparable()) return "hardly any batch has the shape of an earlier one: nothing can be compared with eager";
  return formatText("no candidate is at least {:.1f} % faster than eager", config_.minGain * 100);
}

std::map<int32_t, int64_t> Tuner::eagerPeaks() const {
  std::map<int32_t, int64_t> peaks;
  for (const auto& [shape, peak] : eagerPeaks_) peaks[shape] = peak.bytes;
  return peaks;
}

}  // namespace agspeed::runtime::tune
