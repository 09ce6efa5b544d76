// SPDX-License-Identifier: Apache-2.0
// ActiveTimer: time by which a peer's patience is counted. Of a span in which this process did not look only a little
// counts: it may have been busy or stopped itself, and what it waits for be there. Not thread-safe.
#pragma once

#include <algorithm>
#include <chrono>
#include <utility>

#include "comm/io/clock.h"

namespace agspeed::comm {

class ActiveTimer {
 public:
  explicit ActiveTimer(Clock::time_point begin) : lookedAt_(begin) {}

  /// What counts of the time since the last look.
  Clock::duration look(Clock::time_point now) {
    return std::min<Clock::duration>(now - std::exchange(lookedAt_, now), kLongestSpan);
  }

 private:
  static constexpr std::chrono::milliseconds kLongestSpan{50};

  Clock::time_point lookedAt_;
};

}  // namespace agspeed::comm
