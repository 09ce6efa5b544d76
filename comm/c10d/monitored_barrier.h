// SPDX-License-Identifier: Apache-2.0
// A barrier that names the ranks that did not come.
//
// It uses the store alone, so it works even if the transport does not. A missing rank does not make the group unusable.
// All ranks get the same outcome: the first rank that gives up decides it for later ones. It helps to find ranks that
// hang, and is not fast.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "comm/api.h"

namespace agspeed::comm {

struct MonitoredBarrier {
  uint32_t id = 0;      ///< of the group in its world
  uint64_t number = 0;  ///< counts the group's monitored barriers, from 1
  int rank = 0;
  int size = 1;
  std::string group;  ///< its name, for errors
  std::chrono::milliseconds timeout{0};
  bool areAllNamed = false;  ///< whether the error names all missing ranks; else only the lowest
};

/// Blocks until all ranks of the group have called it. Fails as unavailable after the timeout, at once if the timeout
/// is zero. `store` is the world's.
Status meet(Store& store, const MonitoredBarrier& barrier);

}  // namespace agspeed::comm
