// SPDX-License-Identifier: Apache-2.0
#include "comm/transport/tcp/rate_estimator.h"

#include <algorithm>
#include <utility>

namespace agspeed::comm::tcp {
namespace {

constexpr double kLeastSeconds = 5e-3;
constexpr double kLeastRoundTrips = 4;  ///< so that the first one, without acknowledgements, weighs little
constexpr uint64_t kLeastBytes = 32 * 1024;
/// From then on fewer will do, lest a path that became slow stays unknown.
constexpr double kLongSeconds = 30e-3;
constexpr uint64_t kLeastBytesOfLong = 8 * 1024;
constexpr double kWeight = 0.25;
/// What is shown while little is under way tells of a path that has recovered only where it is so many times the rate
/// known: a shaper lets short bursts through at any rate. Then the rate grows by this factor at a time.
constexpr double kRecovered = 8;
constexpr double kGrowth = 1.1;
/// A rate measured before all connections carried so much is old.
constexpr double kOldSeconds = 0.5;
constexpr double kBestSeconds = 0.1;
constexpr double kWeightOfWorse = 0.02;  ///< in the rate of the better times

}  // namespace

void RateEstimator::look(Clock::time_point now, uint64_t numAcked, bool isIdle, double roundTripSeconds) {
  const double seconds = std::chrono::duration<double>(now - since_).count();
  const uint64_t numBytes = numAcked - ackedBefore_;
  if (!isIdle) {
    if (seconds < std::max(kLeastSeconds, kLeastRoundTrips * roundTripSeconds)) return;
    if (numBytes < (seconds < kLongSeconds ? kLeastBytes : kLeastBytesOfLong)) return;
    const double rate = static_cast<double>(numBytes) / seconds;
    bytesPerSecond_ = bytesPerSecond_ > 0 ? bytesPerSecond_ + kWeight * (rate - bytesPerSecond_) : rate;
    isNew_ = true;
    lookForBest(seconds, static_cast<double>(numBytes));
  } else if (numBytes >= kLeastBytesOfLong && static_cast<double>(numBytes) > kRecovered * bytesPerSecond_ * seconds) {
    bytesPerSecond_ *= kGrowth;
    isNew_ = true;
  }
  since_ = now;
  ackedBefore_ = numAcked;
}

void RateEstimator::age(uint64_t numAckedOfAll, double rateOfAll) {
  if (std::exchange(isNew_, false)) {
    measuredAfter_ = numAckedOfAll;
  } else if (rateOfAll > 0 && static_cast<double>(numAckedOfAll - measuredAfter_) > kOldSeconds * rateOfAll) {
    bytesPerSecond_ = 0;
  }
}

void RateEstimator::lookForBest(double seconds, double numBytes) {
  seconds_ += seconds;
  numBytes_ += numBytes;
  if (seconds_ < kBestSeconds) return;
  const double rate = numBytes_ / seconds_;
  const double weight = bestBytesPerSecond_ == 0 ? 1 : rate > bestBytesPerSecond_ ? kWeight : kWeightOfWorse;
  bestBytesPerSecond_ += weight * (rate - bestBytesPerSecond_);
  seconds_ = numBytes_ = 0;
}

}  // namespace agspeed::comm::tcp
