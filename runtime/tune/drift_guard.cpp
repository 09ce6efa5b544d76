// SPDX-License-Identifier: Apache-2.0
#include "runtime/tune/drift_guard.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace agspeed::runtime::tune {
namespace {

constexpr size_t kWindow = 32;              ///< number of steps whose median is a level
constexpr double kShift = 1.07;             ///< (recent median) / (reference median) above which a suspicion arises
constexpr int64_t kBurstSpacing = 4000;     ///< least number of steps from one burst to the next
constexpr int64_t kBurstRest = 50;          ///< ... and least number of steps after a burst, for each of its steps
constexpr int64_t kConfirmAfter = 200;      ///< steps after an unmeasured decision or graph until its burst
constexpr size_t kRecheckPairs = 40;        ///< sliding window of re-check pairs
constexpr double kBreakConfidence = 0.999;  ///< a rollback needs more certainty than an acceptance
constexpr int64_t kWatched = 16;            ///< of each kWatched + kQuiet steps, the first ones are watched
constexpr int64_t kQuiet = 240;

}  // namespace

DriftGuard::Level::Level() : first(kWindow), recent(kWindow) {}

DriftGuard::DriftGuard(const TunerConfig& config)
    : fraction_(config.guardFraction), minPairs_(config.minPairs), recheck_(kRecheckPairs) {}

double DriftGuard::stepLimit(double chosen, double eager) {
  const double shifted = kShift * chosen;
  return eager > chosen ? std::min(shifted, eager) : shifted;
}

void DriftGuard::start(bool isUnmeasured, std::map<int32_t, double> limits) {
  limits_ = std::move(limits);
  recheck_.clear();
  broken_.reset();
  levels_.clear();
  numSteps_ = numEagerSteps_ = lastBlockStep_ = numReported_ = 0;
  nextBurstStep_ = burstBegin_ = 0;
  burstBlocks_ = 0;
  isConfirming_ = isUnmeasured;
  confirmAtStep_ = kConfirmAfter;
}

void DriftGuard::doubt() {
  isConfirming_ = true;
  confirmAtStep_ = numSteps_ + kConfirmAfter;
}

void DriftGuard::addSteadyStep(int32_t shape, double seconds) {
  ++numReported_;
  Level& level = levels_[shape];
  if (level.first.size() < kWindow) {
    level.first.add(seconds);
    if (mayBurst() && isSlowFromTheStart(shape, level)) suspect();
    return;
  }
  level.recent.add(seconds);
  if (mayBurst() && hasShifted(level)) {
    suspect();
    // The new level becomes the reference, so that one lasting shift is only one suspicion.
    level.first = level.recent;
    level.recent.clear();
  }
}

bool DriftGuard::hasShifted(const Level& level) const {
  return level.recent.size() == kWindow && level.recent.median() > kShift * level.first.median();
}

bool DriftGuard::isSlowFromTheStart(int32_t shape, const Level& level) const {
  const auto limit = limits_.find(shape);
  return limit != limits_.end() && level.first.size() == kWindow && level.first.median() > limit->second;
}

bool DriftGuard::mayBurst() const { return burstBlocks_ == 0 && numSteps_ >= nextBurstStep_; }

void DriftGuard::suspect() {
  ++numSuspicions_;
  requestBurst();
}

void DriftGuard::postponeBurst() {
  forgoBurst();
  isConfirming_ = true;
  confirmAtStep_ = numSteps_ + kBurstSpacing;
}

void DriftGuard::requestBurst() {
  // Old pairs describe the machine before the shift.
  recheck_.clear();
  burstBegin_ = numSteps_;
  nextBurstStep_ = numSteps_ + kBurstSpacing;
  burstBlocks_ = (std::max(minPairs_, int32_t{20}) + 1) / 2;
}

void DriftGuard::addSteps(int64_t count, int64_t numEager) {
  numSteps_ += count;
  numEagerSteps_ += numEager;
  if (isConfirming_ && numSteps_ >= confirmAtStep_) {
    isConfirming_ = false;
    requestBurst();
  }
}

int64_t DriftGuard::nextRoutineStep(int64_t eagerSteps) const {
  const auto paidAt = [this](int64_t numEager) {
    return static_cast<int64_t>(std::ceil(static_cast<double>(numEager) / fraction_));
  };
  return std::max(lastBlockStep_ + paidAt(eagerSteps), paidAt(numEagerSteps_ + eagerSteps));
}

bool DriftGuard::isRecheckDue(int64_t eagerSteps) const {
  if (fraction_ <= 0) return false;
  return burstBlocks_ > 0 || numSteps_ >= nextRoutineStep(eagerSteps);
}

void DriftGuard::finishBlock() {
  ++numBlocks_;
  lastBlockStep_ = numSteps_;
  const bool endsBurst = burstBlocks_ == 1;
  burstBlocks_ = std::max(0, burstBlocks_ - 1);
  judge(endsBurst);
  if (endsBurst && burstBlocks_ == 0) {
    nextBurstStep_ = std::max(nextBurstStep_, numSteps_ + kBurstRest * (numSteps_ - burstBegin_));
  }
}

void DriftGuard::judge(bool endsBurst) {
  if (recheck_.numPairs() < minPairs_) return;
  const Interval interval = recheck_.ratio(kBreakConfidence);
  if (interval.low > 1.0) broken_ = interval;
  // If the pairs of a burst are against the arm, but not clearly, the burst continues until kRecheckPairs pairs exist.
  if (endsBurst && interval.estimate > 1.0 && recheck_.numPairs() < static_cast<int32_t>(kRecheckPairs)) ++burstBlocks_;
}

int64_t DriftGuard::quietSteps(int64_t eagerSteps) const {
  const bool isLearning = !limits_.empty() && numReported_ < static_cast<int64_t>(kWindow);
  if (burstBlocks_ > 0 || isLearning || numReported_ % kWatched != 0 || numReported_ == 0) return 0;
  const int64_t untilConfirm = isConfirming_ ? std::max<int64_t>(0, confirmAtStep_ - numSteps_) : kQuiet;
  const int64_t quiet = std::min(kQuiet, untilConfirm);
  if (fraction_ <= 0) return quiet;
  return std::min(quiet, std::max<int64_t>(0, nextRoutineStep(eagerSteps) - numSteps_));
}

}  // namespace agspeed::runtime::tune
