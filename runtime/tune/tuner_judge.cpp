// SPDX-License-Identifier: Apache-2.0
// What the measurements say about an arm. Called after each block.
//
// An arm is *accepted* when its whole interval lies below 1 - minGain and its summed times do not contradict; it is
// *lost* when it needs too much memory, is far behind the best, cannot reach the gain any more, or has used up its
// pairs.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "runtime/tune/tuner.h"

namespace agspeed::runtime::tune {
namespace {

/// Intervals that end a measurement before it is precise must be this certain: they are looked at after every block.
constexpr double kEarlyConfidence = 0.999;
constexpr double kObjectionConfidence = 0.9;
constexpr int32_t kDropPairs = 4;  ///< two blocks before an arm far behind is dropped

std::string format(const char* pattern, double a, double b, double c, int count) {
  char text[200];
  std::snprintf(text, sizeof text, pattern, a, b, c, count);
  return text;
}

}  // namespace

void Tuner::finishBlock() {
  const Trial trial = *trial_;
  trial_.reset();
  switch (trial.kind) {
    case TrialKind::kVersusEager: ++arms_[trial.arm].numBlocks; return judgeVersusEager(trial.arm);
    case TrialKind::kDuel: return judgeDuel(trial.arm);
    case TrialKind::kRecheck: return guard_.finishBlock();
  }
}

void Tuner::judgeVersusEager(size_t index) {
  Arm& arm = arms_[index];
  if (const std::optional<std::string> objection = memoryObjection(arm, eagerPeaks(), config_))
    return lose(index, *objection);
  const Interval ratio = arm.versusEager.ratio(config_.confidence);
  // Quartiles instead of medians on both sides: one slow step among four pairs must not drop the best arm.
  if (ratio.count >= kDropPairs && arm.versusEager.ratioQuantile(0.25) > config_.dropRatio * bestRatio()) {
    return lose(index, format("dropped early: ratio to eager %.2f, the best arm has %.2f (drop ratio %.1f, %d pairs)",
                              ratio.estimate, bestRatio(), config_.dropRatio, ratio.count));
  }
  if (ratio.count < config_.minPairs) return;
  const double limit = 1 - config_.minGain;
  const Interval early = arm.versusEager.ratio(kEarlyConfidence);
  if (const std::optional<size_t> better = clearlyBetter(index, early.low)) {
    return lose(index, "slower than " + arms_[*better].spec.name +
                           format(": ratio to eager %.3f (%.3f..%.3f, %d pairs)", ratio.estimate, ratio.low, ratio.high,
                                  ratio.count));
  }
  const bool isPrecise = ratio.halfWidth() <= config_.targetHalfWidth;
  const bool isSpent = ratio.count >= config_.maxPairs;
  const bool isEarlyWin = early.high < limit && (config_.mode != Mode::kMax || isAheadOfAll(index));
  if (early.low <= limit && !isPrecise && !isSpent && !isEarlyWin) return;
  if (ratio.high >= limit) {
    return lose(index, format("not clearly faster than eager: ratio %.3f (%.3f..%.3f, %d pairs)", ratio.estimate,
                              ratio.low, ratio.high, ratio.count));
  }
  // Medians do not see rare slow steps, sums do, with far more noise: an objection is given time, then weighed mildly.
  const Interval sums = arm.versusEager.sumRatio(kObjectionConfidence);
  if (sums.estimate > 1 && !isSpent) return;
  if (sums.low > 1) {
    return lose(index,
                format("faster in most steps but not in sum, it has slow steps: sum ratio %.3f (%.3f..%.3f, %d pairs)",
                       sums.estimate, sums.low, sums.high, sums.count));
  }
  accept(index, ratio);
}

/// An arm that is surely faster than one whose ratio is at least `low`: more pairs would not change the choice.
std::optional<size_t> Tuner::clearlyBetter(size_t index, double low) const {
  for (size_t i = 1; i < arms_.size(); ++i) {
    const Comparison& rival = arms_[i].versusEager;
    if (i == index || !arms_[i].isContender() || rival.numPairs() < config_.minPairs) continue;
    if (rival.ratio(kEarlyConfidence).high < low && rival.sumRatio(kObjectionConfidence).estimate < 1) return i;
  }
  return std::nullopt;
}

/// In max mode all arms are measured side by side: an early end is right once no other arm can be the best. Rare slow
/// steps need many pairs to be seen, so half of them are taken in any case.
bool Tuner::isAheadOfAll(size_t index) const {
  if (arms_[index].versusEager.numPairs() < config_.maxPairs / 2) return false;
  const double high = arms_[index].versusEager.ratio(kEarlyConfidence).high;
  return std::all_of(arms_.begin() + 1, arms_.end(), [&](const Arm& rival) {
    if (&rival == &arms_[index] || !rival.isContender()) return true;
    return rival.versusEager.numPairs() >= config_.minPairs && rival.versusEager.ratio(kEarlyConfidence).low > high;
  });
}

void Tuner::accept(size_t index, const Interval& ratio) {
  Arm& arm = arms_[index];
  arm.verdict = Verdict::kAccepted;
  arm.reason = format("faster than eager: ratio %.3f (%.3f..%.3f, %d pairs)", ratio.estimate, ratio.low, ratio.high,
                      ratio.count);
  if (incumbent_ == kEager) incumbent_ = index;
}

void Tuner::lose(size_t index, std::string reason) {
  arms_[index].verdict = Verdict::kLost;
  arms_[index].reason = std::move(reason);
}

/// The accepted arm to compare with the incumbent next. Arms whose intervals against eager do not overlap need no duel.
std::optional<size_t> Tuner::nextChallenger() {
  for (size_t i = 1; i < arms_.size(); ++i) {
    if (i == incumbent_ || !arms_[i].isUsable() || arms_[i].verdict != Verdict::kAccepted) continue;
    const Interval mine = arms_[i].versusEager.ratio(config_.confidence);
    const Interval best = arms_[incumbent_].versusEager.ratio(config_.confidence);
    if (incumbent_ == kEager || mine.high < best.low) {
      if (incumbent_ != kEager) lose(incumbent_, "slower than " + arms_[i].spec.name);
      incumbent_ = i;
      return nextChallenger();
    }
    if (mine.low <= best.high) return i;
    lose(i, "slower than " + arms_[incumbent_].spec.name);
  }
  return std::nullopt;
}

void Tuner::judgeDuel(size_t index) {
  Arm& arm = arms_[index];
  const Interval ratio = arm.duel.ratio(config_.confidence);
  if (ratio.count < config_.minPairs) return;
  const Interval early = arm.duel.ratio(kEarlyConfidence);
  const bool isClear = early.high < 1 || early.low > 1;
  const bool isOver = isClear || ratio.halfWidth() <= config_.targetHalfWidth || ratio.count >= config_.maxPairs;
  if (!isOver) return;
  const bool isWinner = ratio.estimate < 1;
  const size_t winner = isWinner ? index : incumbent_;
  const size_t loser = isWinner ? incumbent_ : index;
  incumbent_ = winner;
  lose(loser,
       "slower than " + arms_[winner].spec.name +
           format(" in direct pairs: ratio %.3f (%.3f..%.3f, %d pairs)", isWinner ? 1 / ratio.estimate : ratio.estimate,
                  isWinner ? 1 / ratio.high : ratio.low, isWinner ? 1 / ratio.low : ratio.high, ratio.count));
}

/// Lowest ratio to eager measured so far, cautiously; 1 is eager itself.
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
  return arms_[arm].spec.name + format(" is %.2f times as fast as eager (step time ratio %.3f to %.3f over %d pairs)",
                                       1 / ratio.estimate, ratio.low, ratio.high, ratio.count);
}

std::string Tuner::describeEager() const {
  if (arms_.size() == 1) return "there is no arm but eager";
  const bool isAnyMeasured = std::any_of(arms_.begin() + 1, arms_.end(), [](const Arm& arm) { return arm.isUsable(); });
  if (!isAnyMeasured) return "no arm could be used; see the reason of each";
  char text[80];
  std::snprintf(text, sizeof text, "no arm is at least %.1f %% faster than eager", config_.minGain * 100);
  return text;
}

std::map<int32_t, int64_t> Tuner::eagerPeaks() const {
  std::map<int32_t, int64_t> peaks;
  for (const auto& [shape, peak] : eagerPeaks_) peaks[shape] = peak.bytes;
  return peaks;
}

}  // namespace agspeed::runtime::tune
