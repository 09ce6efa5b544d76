// SPDX-License-Identifier: Apache-2.0
// DriverLoad: measures how busy the driver is while it sends, from the scheduler's counters of the calling thread.
//
// Not thread-safe. Source of the counters: Documentation/scheduler/sched-stats.rst of Linux, /proc/<pid>/schedstat.
#pragma once

#include <cstdint>

#include "comm/io/clock.h"

namespace agspeed::comm::engine {

class DriverLoad {
 public:
  /// Returns the share of the recent time in which the calling thread ran, or was ready and waited for a processor.
  /// Returns 0 until it is known. The time between two calls counts only if it is at most 0.1 s, because after a longer
  /// pause the driver had nothing to send.
  double busyShare(io::Clock::time_point now);

 private:
  int thread_ = 0;
  io::Clock::time_point sampledAt_{};
  uint64_t busyBefore_ = 0;  ///< nanoseconds
  double share_ = 0;
};

}  // namespace agspeed::comm::engine
