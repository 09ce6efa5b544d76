// SPDX-License-Identifier: Apache-2.0
#include "comm/transport/tcp/rate_estimator.h"

#include <algorithm>
#include <utility>

namespace agspeed::comm::tcp {
namespace {

/// A measurement covers at least max(kLeastSeconds, kLeastRoundTrips * round trip) and kLeastBytes acknowledged bytes.
/// The first round trip of a span brings no acknowledgement.
constexpr double kLeastSeconds = 5e-3;
constexpr double kLeastRoundTrips = 4;
constexpr uint64_t kLeastBytes = 32 * 1024;
/// In a span of at least kLongSeconds, kLeastBytesOfLong bytes suffice for a measurement. Otherwise a path that has
/// become slow would rarely be measured.
constexpr double kLongSeconds = 30e-3;
constexpr uint64_t kLeastBytesOfLong = 8 * 1024;
constexpr double kWeight = 0.25;  ///< weight of a new measurement
/// Few bytes in flight are not enough to measure a rate, but can show that the path has become faster. If such a sample
/// has at least kLeastBytesOfLong bytes, and its rate exceeds kRecovered times the known rate, the known rate is
/// multiplied by kGrowth. A lower rate of the sample shows nothing, because a shaper lets short bursts through at any
/// rate.
constexpr double kRecovered = 8;
constexpr double kGrowth = 1.1;
/// A rate is old if the rail has carried more than kOldSeconds * (rate of the rail) bytes since the measurement.
constexpr double kOldSeconds = 0.5;
constexpr double kBestSeconds = 0.1;     ///< least length of a window of the peak rate
constexpr double kWeightOfWorse = 0.02;  ///< weight of a window whose rate is below the peak rate

}  // namespace

void RateEstimator::update(io::Clock::time_point now, uint64_t numAcked, bool isIdle, double roundTripSeconds) {
  const double seconds = std::chrono::duration<double>(now - since_).count();
  const uint64_t numBytes = numAcked - ackedBefore_;
  if (!isIdle) {
    if (seconds < std::max(kLeastSeconds, kLeastRoundTrips * roundTripSeconds)) return;
    if (numBytes < (seconds < kLongSeconds ? kLeastBytes : kLeastBytesOfLong)) return;
    const double rate = static_cast<double>(numBytes) / seconds;
    bytesPerSecond_ = bytesPerSecond_ > 0 ? bytesPerSecond_ + kWeight * (rate - bytesPerSecond_) : rate;
    isNew_ = true;
    updatePeak(seconds, static_cast<double>(numBytes));
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

void RateEstimator::updatePeak(double seconds, double numBytes) {
  seconds_ += seconds;
  numBytes_ += numBytes;
  if (seconds_ < kBestSeconds) return;
  const double rate = numBytes_ / seconds_;
  const double weight = bestBytesPerSecond_ == 0 ? 1 : rate > bestBytesPerSecond_ ? kWeight : kWeightOfWorse;
  bestBytesPerSecond_ += weight * (rate - bestBytesPerSecond_);
  seconds_ = numBytes_ = 0;
}

}  // namespace agspeed::comm::tcp
