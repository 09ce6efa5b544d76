// SPDX-License-Identifier: Apache-2.0
// A barrier whose error names the ranks that did not arrive.
//
// It uses the store alone, so it works even if the transport does not. A missing rank does not make the group unusable.
// All ranks get the same outcome: if one rank times out, the ranks that arrive later fail, too. Use it to find ranks
// that hang. It is slower than a barrier of the transport.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "comm/api.h"

namespace agspeed::comm::c10d {

/// One rank's call of a barrier.
struct MonitoredBarrier {
  uint32_t id = 0;      ///< the group's id in its world
  uint64_t number = 0;  ///< the number of this barrier among the group's monitored barriers, from 1
  int rank = 0;
  int size = 1;
  std::string group;  ///< the group's name, for errors
  std::chrono::milliseconds timeout{0};
  bool areAllNamed = false;  ///< the error names all missing ranks; else only the lowest one
};

/// Blocks until all ranks of the group have called this function. Fails as unavailable after the timeout, or at once if
/// the timeout is zero. `store`: the world's store.
Status runBarrier(Store& store, const MonitoredBarrier& barrier);

}  // namespace agspeed::comm::c10d
