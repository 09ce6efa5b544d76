// SPDX-License-Identifier: Apache-2.0
// ActiveTimer: how long this process has waited for a peer while it was polling. The time between two calls of look()
// counts for at most 50 ms: in a longer gap this process itself may have been busy or stopped, and the peer's answer
// may have arrived unread. Not thread-safe.
#pragma once

#include <algorithm>
#include <chrono>
#include <utility>

#include "comm/io/clock.h"

namespace agspeed::comm {

class ActiveTimer {
 public:
  explicit ActiveTimer(Clock::time_point begin) : lookedAt_(begin) {}

  /// Returns the part of the time since the last call that counts.
  Clock::duration look(Clock::time_point now) {
    return std::min<Clock::duration>(now - std::exchange(lookedAt_, now), kLongestSpan);
  }

 private:
  static constexpr std::chrono::milliseconds kLongestSpan{50};

  Clock::time_point lookedAt_;
};

}  // namespace agspeed::comm
