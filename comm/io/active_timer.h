// SPDX-License-Identifier: Apache-2.0
// ActiveTimer: measures how long this process has waited for a peer, without the time in which this process itself was
// busy or stopped. A gap of more than 50 ms between two calls of look() counts as 50 ms. During a longer gap, the
// peer's answer may have arrived without being read. Not thread-safe.
#pragma once

#include <algorithm>
#include <chrono>
#include <utility>

#include "comm/io/clock.h"

namespace agspeed::comm::io {

class ActiveTimer {
 public:
  explicit ActiveTimer(Clock::time_point begin) : lookedAt_(begin) {}

  /// Returns the time since the last call, but at most 50 ms.
  Clock::duration look(Clock::time_point now) {
    return std::min<Clock::duration>(now - std::exchange(lookedAt_, now), kLongestSpan);
  }

 private:
  static constexpr std::chrono::milliseconds kLongestSpan{50};

  Clock::time_point lookedAt_;
};

}  // namespace agspeed::comm::io
