// SPDX-License-Identifier: Apache-2.0
// Coalescing: the works that a thread starts between start() and end(), which become one, as torch wants it of its
// coalescing manager. Each of them is whole by itself. Threads do not disturb each other: each has its own collection
// per group. Thread-safe.
#pragma once

#include <cstdint>
#include <vector>

#include "comm/c10d/work.h"

namespace agspeed::comm {

class Coalescing {
 public:
  Coalescing();

  void start();
  /// Whether this thread collects.
  bool isActive() const;
  /// Collects `work` where this thread does so.
  void add(const Work::Handle& work);
  /// Returns: what was collected, in its order.
  std::vector<Work::Handle> end();

 private:
  const uint64_t serial_;  ///< of this object in its process
};

}  // namespace agspeed::comm
