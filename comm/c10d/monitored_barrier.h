// SPDX-License-Identifier: Apache-2.0
// A barrier that names the ranks which did not come.
//
// It goes through the store alone, so it works and tells the truth when the transport does not, and a rank that is
// missing leaves the group as usable as it was. All ranks see the same outcome: whoever gives up first decides it for
// those who come later. For finding out who hangs, not for speed.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "comm/api.h"

namespace agspeed::comm {

struct MonitoredBarrier {
  uint32_t id = 0;      ///< the group's in its world
  uint64_t number = 0;  ///< counts the group's monitored barriers, from 1
  int rank = 0;
  int size = 1;
  std::string group;  ///< its name, for people
  std::chrono::milliseconds timeout{0};
  bool areAllNamed = false;  ///< else the lowest rank that is missing
};

/// Blocks until all ranks of the group have called it, or fails as unavailable after the timeout, at once where it is
/// zero. `store` is the world's.
Status meet(Store& store, const MonitoredBarrier& barrier);

}  // namespace agspeed::comm
