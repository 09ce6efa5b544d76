// SPDX-License-Identifier: Apache-2.0
#include "runtime/tune/arms/judgement.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace agspeed::runtime::tune {
namespace {

using Kind = Judgement::Kind;

/// Confidence of intervals that end a measurement before it is precise; it is high because they are checked after every
/// block.
constexpr double kEarlyConfidence = 0.999;
/// signEvidence() that ends a measurement at once. The probability of an error is at most 0.2 % for a gain and 5 % for
/// the lack of one, however often the evidence is checked.
constexpr double kGainEvidence = 500;
constexpr double kFutileEvidence = 20;
constexpr double kObjectionConfidence = 0.9;
/// If these are wrong, a gain is missed, but no step becomes slower than eager.
constexpr double kFutileConfidence = 0.95;
constexpr double kChoiceConfidence = 0.9;
constexpr int32_t kOwnPairs = 4;        ///< own pairs needed to judge an arm with pairs of an earlier process
constexpr int32_t kDropPairs = 4;       ///< two blocks, before an arm that is far behind is dropped
constexpr int32_t kChoicePairs = 8;     ///< four blocks, before an arm is dropped for a rival
constexpr double kHopelessRatio = 3.0;  ///< an arm whose first steps are all this much slower than eager is out
constexpr size_t kHopelessSteps = 3;
constexpr int64_t kMinPeaks = 2;  ///< steps with a measured peak before memory is judged

double mebibytes(int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

bool isKnownHere(const Arm& arm) { return arm.versusEager.numEarlier() == 0 || arm.versusEager.numOwn() >= kOwnPairs; }

/// A block yields two pairs or more, unless few runs pair up because there are many shapes.
bool isOutOfBlocks(const Arm& arm, const TunerConfig& config) { return 2 * arm.numBlocks >= config.maxPairs; }

/// Returns why the arm needs too much memory, or nothing if it does not.
std::optional<std::string> memoryObjection(const Arm& arm, const std::map<int32_t, int64_t>& eagerPeaks,
                                           const TunerConfig& config) {
  for (const auto& [shape, record] : arm.shapes) {
    const auto eager = eagerPeaks.find(shape);
    if (eager == eagerPeaks.end() || record.numPeaks < kMinPeaks) continue;
    const double limit =
        static_cast<double>(eager->second) * (1 + config.memoryFraction) + static_cast<double>(config.memorySlackBytes);
    if (static_cast<double>(record.peakBytes) <= limit) continue;
    return formatText("needs {:.1f} MiB at its peak, eager {:.1f} MiB (allowed: {:.0f} % + {:.0f} MiB more)",
                      mebibytes(record.peakBytes), mebibytes(eager->second), config.memoryFraction * 100,
                      mebibytes(config.memorySlackBytes));
  }
  return std::nullopt;
}

/// Whether the interval is unlikely to be below 1 - minGain even with maxPairs pairs. It will then span the quantiles
/// 1/2 +- z / (2 sqrt(maxPairs)) of the ratios. The present pairs give an estimate of these quantiles.
bool isFutile(const Comparison& pairs, const TunerConfig& config) {
  if (pairs.evidenceAbove(1 - config.minGain) >= kFutileEvidence) return true;
  if (pairs.numPairs() < config.minPairs) return false;
  const double distance = std::min(0.5, twoSidedNormalQuantile(config.confidence) / (2 * std::sqrt(config.maxPairs)));
  const double reach = (pairs.ratioQuantile(0.5 + distance) - pairs.ratioQuantile(0.5 - distance)) / 2;
  return pairs.ratio(kFutileConfidence).low > 1 - config.minGain - std::max(config.targetHalfWidth, reach);
}

}  // namespace

bool isJudgeable(const Arm& arm, const TunerConfig& config) { return isKnownHere(arm) || isOutOfBlocks(arm, config); }

Judgement judgeVersusEager(const Arm& arm, const Standing& standing, const TunerConfig& config) {
  if (const auto objection = memoryObjection(arm, standing.eagerPeaks, config)) return {Kind::kTooLarge, *objection};
  const Interval ratio = arm.versusEager.ratio(config.confidence);
  // Uses quartiles instead of medians on both sides: one slow step among four pairs must not drop the best arm.
  if (ratio.count >= kDropPairs && arm.versusEager.ratioQuantile(0.25) > config.dropRatio * standing.bestRatio) {
    return {Kind::kLose, formatText("dropped early: {}; the best candidate has {:.2f} times", describeSpeed(ratio),
                                    1 / standing.bestRatio)};
  }
  if (!standing.rival.empty()) return {Kind::kLoseTo, ": " + describeSpeed(ratio)};
  const double limit = 1 - config.minGain;
  const bool isPrecise = ratio.count >= config.minPairs && ratio.halfWidth() <= config.targetHalfWidth;
  const bool isSpent = ratio.count >= config.maxPairs || isOutOfBlocks(arm, config);
  if (isFutile(arm.versusEager, config) || ((isPrecise || isSpent) && ratio.high >= limit)) {
    return {Kind::kNotFaster, ratio.count == 0 ? "no batch had the shape of one that eager ran shortly before or after"
                                               : "not clearly faster than eager: " + describeSpeed(ratio)};
  }
  const bool isCertain = isClearGain(arm, config.minGain) || arm.versusEager.ratio(kEarlyConfidence).high < limit;
  const bool isEarlyWin = ratio.count >= config.minPairs && isCertain;
  if (!isPrecise && !isSpent && !isEarlyWin) return {};
  // Medians do not show rare slow steps. Sums show them, but with far more noise. So sums are judged only after all
  // pairs, and at a low confidence.
  const Interval sums = arm.versusEager.sumRatio(kObjectionConfidence);
  if (sums.estimate > 1 && !isSpent) return {};
  if (sums.low > 1) {
    return {Kind::kDisqualify,
            "faster in most steps but not in sum, as it has slow steps: in sum " + describeSpeed(sums)};
  }
  if (!isKnownHere(arm)) {
    return {Kind::kLose, "too few batches had the shape of one that eager ran shortly before or after"};
  }
  // In max mode the chosen arm is measured further, because rare slow steps show only in many pairs.
  const bool isConfirmed = config.mode != Mode::kMax || isPrecise || isSpent || ratio.count >= config.maxPairs / 2;
  return {Kind::kAccept, "faster than eager: " + describeSpeed(ratio), isConfirmed};
}

std::optional<DuelResult> judgeDuel(const Comparison& duel, const TunerConfig& config) {
  const Interval ratio = duel.ratio(kChoiceConfidence);
  if (ratio.count < kChoicePairs) return std::nullopt;
  const bool isWon = ratio.estimate < 1;
  // How much better the loser could still be; it has to be negligible.
  const double gain = isWon ? 1 - 1 / ratio.high : 1 - ratio.low;
  if (gain >= config.minGain && ratio.count < config.maxPairs) return std::nullopt;
  Interval losers = ratio;
  if (isWon) losers = {1 / ratio.estimate, 1 / ratio.high, 1 / ratio.low, ratio.count};
  return DuelResult{isWon, " in direct pairs: " + describeSpeed(losers, "its")};
}

bool cannotBeat(const Arm& arm, const Arm& rival, const TunerConfig& config) {
  const Interval mine = arm.versusEager.ratio(kChoiceConfidence);
  const Interval other = rival.versusEager.ratio(kChoiceConfidence);
  if (std::min(mine.count, other.count) < kChoicePairs || mine.estimate < other.estimate) return false;
  return differenceLow(mine, other) > -config.minGain * other.estimate;
}

bool losesTo(const Arm& arm, const Arm& rival, const TunerConfig& config) {
  return rival.isContender() && cannotBeat(arm, rival, config) &&
         rival.versusEager.sumRatio(kObjectionConfidence).estimate < 1;
}

double cautiousRatio(const Arm& arm) {
  return arm.isUsable() && arm.versusEager.numPairs() >= kDropPairs ? arm.versusEager.ratioQuantile(0.75) : 1;
}

bool isClearGain(const Arm& arm, double gain) { return arm.versusEager.evidenceBelow(1 - gain) >= kGainEvidence; }

bool isHopeless(const Arm& arm, const Arm& eager) {
  if (arm.seconds.size() < kHopelessSteps || eager.seconds.empty()) return false;
  const std::vector<double>& values = arm.seconds.values();
  return *std::min_element(values.begin(), values.end()) > kHopelessRatio * eager.seconds.median();
}

bool hasSlowSteps(const Arm& arm, const Arm& eager) {
  const auto excess = [](const RollingWindow& seconds) {
    const std::vector<double>& values = seconds.values();
    return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size()) / seconds.median();
  };
  if (eager.seconds.empty()) return false;
  const double ratio = arm.versusEager.ratioQuantile(0.5);
  return ratio * excess(arm.seconds) > (1 + ratio) / 2 * excess(eager.seconds);
}

}  // namespace agspeed::runtime::tune
