// SPDX-License-Identifier: Apache-2.0
#include "runtime/tune/measure/comparison.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "runtime/base/format.h"

namespace agspeed::runtime::tune {
namespace {

constexpr size_t kLowQuantileFrom = 4;  ///< runs with this many steps use p25
constexpr size_t kMaxUnpaired = 4;      ///< per shape
constexpr double kContradictionConfidence = 0.95;
constexpr double kContradictionTail = 0.1;  ///< share of the earlier pairs at each end of their range
constexpr int32_t kContradictionPairs = 4;  ///< number of new pairs that must all be in one end: one in 5,000 by chance
constexpr int64_t kMaxPairDistance =
    64;  ///< in runs: older runs of a rare shape are dropped, because the machine may have changed

double typicalSeconds(const std::vector<double>& seconds) {
  return quantile(seconds, seconds.size() >= kLowQuantileFrom ? 0.25 : 0.5);
}

}  // namespace

void Comparison::addRun(Side side, const std::map<int32_t, std::vector<double>>& secondsByShape) {
  for (const auto& [shape, seconds] : secondsByShape) {
    const double mean = std::accumulate(seconds.begin(), seconds.end(), 0.0) / static_cast<double>(seconds.size());
    addShape(shape, {side, typicalSeconds(seconds), mean, numRuns_});
  }
  ++numRuns_;
}

void Comparison::addShape(int32_t shape, const Run& run) {
  std::deque<Run>& waiting = unpaired_[shape];
  while (!waiting.empty() && run.order - waiting.front().order > kMaxPairDistance) waiting.pop_front();
  if (waiting.empty() || waiting.back().side == run.side) {
    waiting.push_back(run);
    if (waiting.size() > kMaxUnpaired) waiting.pop_front();
    return;
  }
  const Run partner = waiting.back();
  waiting.pop_back();
  run.side == Side::kArm ? addPair(partner, run) : addPair(run, partner);
}

void Comparison::addPair(const Run& reference, const Run& arm) {
  if (reference.typical <= 0 || arm.typical <= 0) return;
  pairs_.push_back({reference.typical, arm.typical, reference.mean, arm.mean});
  if (pairs_.size() > maxPairs_) {
    pairs_.pop_front();
    numEarlier_ = std::max(0, numEarlier_ - 1);
  }
}

void Comparison::addEarlier(const std::vector<RunPair>& pairs) {
  pairs_.assign(pairs.begin(), pairs.end());
  numEarlier_ = numPairs();
}

bool Comparison::dropContradicted() {
  if (numEarlier_ == 0 || numOwn() < kContradictionPairs) return false;
  const std::vector<double> all = ratios();
  const std::vector<double> earlier(all.begin(), all.begin() + numEarlier_);
  const std::vector<double> own(all.begin() + numEarlier_, all.end());
  const auto [least, most] = std::minmax_element(own.begin(), own.end());
  const bool isOutside =
      *most < quantile(earlier, kContradictionTail) || *least > quantile(earlier, 1 - kContradictionTail);
  const Interval before = medianInterval(earlier, kContradictionConfidence);
  const Interval now = medianInterval(own, kContradictionConfidence);
  if (!isOutside && now.low <= before.high && before.low <= now.high) return false;
  pairs_.erase(pairs_.begin(), pairs_.begin() + numEarlier_);
  numEarlier_ = 0;
  return true;
}

void Comparison::clear() {
  unpaired_.clear();
  pairs_.clear();
  numEarlier_ = 0;
}

std::vector<double> Comparison::ratios() const {
  std::vector<double> ratios;
  ratios.reserve(pairs_.size());
  for (const RunPair& pair : pairs_) ratios.push_back(pair.ratio());
  return ratios;
}

Interval Comparison::ratio(double confidence) const { return medianInterval(ratios(), confidence); }

double Comparison::ratioQuantile(double fraction) const { return quantile(ratios(), fraction); }

double Comparison::evidenceBelow(double limit) const {
  const auto numBelow =
      std::count_if(pairs_.begin(), pairs_.end(), [&](const RunPair& p) { return p.ratio() < limit; });
  return signEvidence(static_cast<int32_t>(numBelow), numPairs() - static_cast<int32_t>(numBelow));
}

double Comparison::evidenceAbove(double limit) const {
  const auto numAbove =
      std::count_if(pairs_.begin(), pairs_.end(), [&](const RunPair& p) { return p.ratio() > limit; });
  return signEvidence(static_cast<int32_t>(numAbove), numPairs() - static_cast<int32_t>(numAbove));
}

Interval Comparison::sumRatio(double confidence) const {
  std::vector<std::pair<double, double>> means;
  means.reserve(pairs_.size());
  for (const RunPair& pair : pairs_) means.emplace_back(pair.referenceMean, pair.armMean);
  return sumRatioInterval(means, confidence);
}

std::string describeSpeed(const Interval& ratio, std::string_view whose) {
  const std::string start = formatText("{:.3f} times {} speed (", 1 / ratio.estimate, whose);
  if (!ratio.isBounded() || ratio.low <= 0) return formatText("{}{} pairs, too few to be sure)", start, ratio.count);
  return formatText("{}{:.3f} to {:.3f}, {} pairs)", start, 1 / ratio.high, 1 / ratio.low, ratio.count);
}

AbbaSchedule::AbbaSchedule(int32_t runSteps, Side current)
    : runSteps_(runSteps), numDropped_(current == Side::kReference ? 0 : 1) {}

Side AbbaSchedule::next() const {
  const bool isMiddle = position_ == 1 || position_ == 2;
  return isMiddle ? Side::kArm : Side::kReference;
}

void AbbaSchedule::addStep(Side ran, int32_t shape, double seconds, bool counts, Comparison& comparison) {
  if (isBlockDone()) return;  // a late step of the same boundary
  if (ran != next()) {
    // The step did not run the requested arm, so the steps of this run cannot be compared.
    ++numMissed_;
    collected_.clear();
    numCollected_ = 0;
    numDropped_ = std::max(numDropped_, 1);
    return;
  }
  numMissed_ = 0;
  if (numDropped_ > 0) {
    --numDropped_;
    return;
  }
  if (!counts) return;
  collected_[shape].push_back(seconds);
  if (++numCollected_ == runSteps_) closeRun(comparison);
}

void AbbaSchedule::settle(int32_t steps) { numDropped_ = std::max(numDropped_, steps); }

void AbbaSchedule::closeRun(Comparison& comparison) {
  const Side side = next();
  comparison.addRun(side, collected_);
  collected_.clear();
  numCollected_ = 0;
  ++position_;
  if (!isBlockDone() && next() != side) numDropped_ = 1;
}

int32_t chooseRunSteps(double stepSeconds, double minRunSeconds, int32_t maxRunSteps) {
  if (!(stepSeconds > 0)) return maxRunSteps;
  const double steps = std::ceil(minRunSeconds / stepSeconds);
  return static_cast<int32_t>(std::clamp(steps, 1.0, static_cast<double>(maxRunSteps)));
}

}  // namespace agspeed::runtime::tune
