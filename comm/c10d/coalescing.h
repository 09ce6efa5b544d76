// SPDX-License-Identifier: Apache-2.0
// Coalescing: collects the works that a thread starts between start() and end(). Torch's coalescing manager gets one
// work for all of them. A caller may also wait for each work alone. Each thread has its own collection per group.
// Thread-safe.
#pragma once

#include <cstdint>
#include <vector>

#include "comm/c10d/work.h"

namespace agspeed::comm::c10d {

class Coalescing {
 public:
  Coalescing();

  /// Begins to collect the works of this thread.
  void start();
  /// Whether this thread is collecting.
  bool isActive() const;
  /// Collects `work` if this thread is collecting.
  void add(const Work::Handle& work);
  /// Stops collecting, and returns the collected works in the order of their start.
  std::vector<Work::Handle> end();

 private:
  const uint64_t serial_;  ///< unique for each Coalescing in the process
};

}  // namespace agspeed::comm::c10d
