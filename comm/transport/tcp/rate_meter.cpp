// SPDX-License-Identifier: Apache-2.0
#include "comm/transport/tcp/rate_meter.h"

#include <algorithm>

namespace agspeed::comm::tcp {
namespace {

constexpr double kLeastSeconds = 5e-3;
constexpr double kLeastRoundTrips = 4;  ///< so that the first one, without acknowledgements, weighs little
constexpr uint64_t kLeastBytes = 32 * 1024;
/// From then on fewer will do, lest a path that became slow stays unknown.
constexpr double kLongSeconds = 30e-3;
constexpr uint64_t kLeastBytesOfLong = 8 * 1024;
constexpr double kWeight = 0.25;

}  // namespace

void RateMeter::look(Clock::time_point now, uint64_t numAcked, bool isIdle, double roundTripSeconds) {
  const double seconds = std::chrono::duration<double>(now - since_).count();
  const uint64_t numBytes = numAcked - ackedBefore_;
  if (!isIdle) {
    if (seconds < std::max(kLeastSeconds, kLeastRoundTrips * roundTripSeconds)) return;
    if (numBytes < (seconds < kLongSeconds ? kLeastBytes : kLeastBytesOfLong)) return;
    const double rate = static_cast<double>(numBytes) / seconds;
    bytesPerSecond_ = bytesPerSecond_ > 0 ? bytesPerSecond_ + kWeight * (rate - bytesPerSecond_) : rate;
  }
  since_ = now;
  ackedBefore_ = numAcked;
}

}  // namespace agspeed::comm::tcp
