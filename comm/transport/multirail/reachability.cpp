// SPDX-License-Identifier: Apache-2.0
#include "comm/transport/multirail/reachability.h"

#include <algorithm>

namespace agspeed::comm::multirail {
namespace {

using std::chrono::milliseconds;

constexpr io::Clock::duration kWarnAfter = milliseconds(500);
/// A peer whose process has ended is lost after this many ticks without a frame. Frames that the process sent before
/// may still be in this kernel, and are read between ticks.
constexpr int kQuietTicks = 3;

}  // namespace

Reachability::Reachability(size_t numRails) : isUp_(numRails), causes_(numRails, transport::LossCause::kSilent) {}

bool Reachability::isReached() const { return std::find(isUp_.begin(), isUp_.end(), true) != isUp_.end(); }

bool Reachability::railUp(size_t rail) {
  stage_ = Stage::kReached;
  downSince_ = {};
  isWarned_ = false;
  const bool wasUp = isUp_[rail];
  isUp_[rail] = true;
  return !wasUp;
}

bool Reachability::railDown(size_t rail, transport::LossCause cause, const std::string& failure,
                            io::Clock::time_point now) {
  const bool wasUp = isUp_[rail];
  isUp_[rail] = false;
  causes_[rail] = cause;
  if (cause == transport::LossCause::kUnpaired) return wasUp;
  if (cause != transport::LossCause::kUnreachable && cause != transport::LossCause::kRefused) wasFound_ = true;
  lastFailure_ = failure;
  if (!isSought() && !isReached()) {
    downSince_ = now;
    numQuietTicks_ = 0;
  }
  return wasUp;
}

Reachability::Verdict Reachability::check(io::Clock::time_point now, bool mayStillReceive,
                                          const ReachabilityOptions& options) {
  if (!isSought()) return Verdict::kFine;
  const auto numPaired = std::ssize(causes_) - count(transport::LossCause::kUnpaired);
  const bool hasRefused = count(transport::LossCause::kRefused) == numPaired;
  if (hasRefused && !mayStillReceive && numQuietTicks_ >= kQuietTicks) return Verdict::kEnded;
  // A process that does not answer, or that closes handshakes, may be busy. If no process was ever found at any
  // address, the addresses are probably wrong, so the shorter timeout applies.
  const bool wasNeverFound =
      stage_ == Stage::kNew && !wasFound_ &&
      count(transport::LossCause::kUnreachable) + count(transport::LossCause::kRefused) == numPaired;
  const io::Clock::duration down = now - downSince_;
  if (down > (wasNeverFound ? options.connectTimeout : options.peerTimeout)) return Verdict::kUnreachable;
  if (down <= kWarnAfter || isWarned_) return Verdict::kFine;
  isWarned_ = true;
  return Verdict::kWarn;
}

milliseconds Reachability::downFor(io::Clock::time_point now) const {
  return std::chrono::duration_cast<milliseconds>(now - downSince_);
}

std::ptrdiff_t Reachability::count(transport::LossCause cause) const {
  return std::count(causes_.begin(), causes_.end(), cause);
}

}  // namespace agspeed::comm::multirail
