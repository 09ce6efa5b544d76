// SPDX-License-Identifier: Apache-2.0
#include "comm/transport/multirail/rail_scheduler.h"

#include <algorithm>
#include <limits>

namespace agspeed::comm::multirail {
namespace {

/// A frame waits for a full rail if t(full rail) < kMuchSooner * t(best rail with room), where t is the estimated time
/// until delivery. With a value of 0.6, a rail with a tenth of the other rails' rate still gets frames, one at a time.
constexpr double kMuchSooner = 0.6;
/// If the best rail with room would deliver a frame within this time, the frame does not wait for a full rail.
/// Estimates of such short times are inaccurate.
constexpr double kLongSeconds = 4e-3;
/// longestPayload() limits payloads so that no rail needs more than kMaxSeconds for one. If the rails differ much in
/// speed, payloads have at most kUnlikeBytes. Rails differ much if t(slowest rail) > max(kAlike * t(fastest rail),
/// kLongSeconds), where t is the time to carry the longest payload.
constexpr double kMaxSeconds = 8e-3, kAlike = 2;
constexpr uint32_t kUnlikeBytes = 64 * 1024;
/// Payloads may be longer than kLongBytes if every rail carries one within this time. The longer frames then save work
/// and delay nothing.
constexpr double kQuickSeconds = 1e-3;
/// On a rail that is not preferred (RailOptions::isHome), cost() is kAway * estimated delivery time + kAwaySeconds. The
/// estimates for rarely used rails are inaccurate, so such a rail takes a frame only if it appears to be much faster.
constexpr double kAway = 2, kAwaySeconds = 1e-3;

}  // namespace

RailScheduler::RailScheduler(const transport::Rails& rails, int peer) : rails_(rails), peer_(peer) {
  for (const auto& rail : rails) isHome_.push_back(rail->info().isHome);
}

double RailScheduler::cost(size_t rail, size_t numBytes) const {
  const double seconds = rails_[rail]->deliverySeconds(peer_, numBytes);
  return isHome_[rail] ? seconds : kAway * seconds + kAwaySeconds;
}

int RailScheduler::nextRail(size_t numBytes) const {
  int best = transport::kNoRail;
  double bestDelay = 0;
  for (size_t i = 0; i < rails_.size(); ++i) {
    const size_t rail = (nextRail_ + i) % rails_.size();
    if (!rails_[rail]->canSend(peer_)) continue;
    if (rails_.size() == 1) return static_cast<int>(rail);
    const double delay = cost(rail, numBytes);
    if (best == transport::kNoRail || delay < bestDelay) {
      best = static_cast<int>(rail);
      bestDelay = delay;
    }
  }
  return best;
}

bool RailScheduler::canAnySend() const {
  return std::any_of(rails_.begin(), rails_.end(), [this](const auto& rail) { return rail->canSend(peer_); });
}

bool RailScheduler::isFullOneWorthWaitingFor(const Reachability& reachability, size_t numBytes) const {
  const auto isFull = [&](size_t rail) { return reachability.isUp(rail) && !rails_[rail]->canSend(peer_); };
  bool isAnyFull = false;
  for (size_t rail = 0; rail < rails_.size(); ++rail) isAnyFull = isAnyFull || isFull(rail);
  if (!isAnyFull) return false;
  double soonest = std::numeric_limits<double>::max(), soonestOfFull = soonest;
  for (size_t rail = 0; rail < rails_.size(); ++rail) {
    if (!reachability.isUp(rail)) continue;
    double& least = isFull(rail) ? soonestOfFull : soonest;
    least = std::min(least, cost(rail, numBytes));
  }
  return soonest > kLongSeconds && soonestOfFull < kMuchSooner * soonest;
}

double RailScheduler::carrySeconds(size_t rail, uint32_t numBytes) const {
  return rails_[rail]->deliverySeconds(peer_, numBytes) - rails_[rail]->deliverySeconds(peer_, 0);
}

bool RailScheduler::areAllQuick(const Reachability& reachability, uint32_t numBytes) const {
  double most = 0;
  for (size_t rail = 0; rail < rails_.size(); ++rail) {
    if (reachability.isUp(rail)) most = std::max(most, carrySeconds(rail, numBytes));
  }
  return most > 0 && most <= kQuickSeconds;
}

uint32_t RailScheduler::longestPayload(const Reachability& reachability, uint32_t maxBytes) const {
  double least = std::numeric_limits<double>::max(), most = 0;
  for (size_t rail = 0; rail < rails_.size(); ++rail) {
    if (!reachability.isUp(rail)) continue;
    const double seconds = carrySeconds(rail, maxBytes);
    least = std::min(least, seconds);
    most = std::max(most, seconds);
  }
  const uint32_t limit = most > std::max(kAlike * least, kLongSeconds) ? std::min(maxBytes, kUnlikeBytes) : maxBytes;
  if (most <= kMaxSeconds) return limit;
  const auto carriedInTime = static_cast<uint32_t>(kMaxSeconds / most * maxBytes);
  return std::clamp(carriedInTime, std::min(kSharedBytes, limit), limit);
}

}  // namespace agspeed::comm::multirail
