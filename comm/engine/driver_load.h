// SPDX-License-Identifier: Apache-2.0
// DriverLoad: measures how busy the driver is, by the scheduler's counters of the calling thread.
//
// Not thread-safe. Source of the counters: Documentation/scheduler/sched-stats.rst of Linux, /proc/<pid>/schedstat.
#pragma once

#include <cstdint>

#include "comm/io/clock.h"

namespace agspeed::comm {

class DriverLoad {
 public:
  /// Returns the share of the time in which the calling thread ran, or was ready and waited for a processor. It is
  /// measured again every 50 ms, and from the start on another thread. Returns 0 until it is known.
  double busyShare(Clock::time_point now);

 private:
  int thread_ = 0;
  Clock::time_point since_{};
  uint64_t busyBefore_ = 0;  ///< nanoseconds
  double share_ = 0;
};

}  // namespace agspeed::comm
