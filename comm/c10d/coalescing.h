// SPDX-License-Identifier: Apache-2.0
// Coalescing: what a thread starts between start() and end() becomes one work, as torch wants it for batches of
// messages. Threads do not disturb each other: each has its own collection per group. Thread-safe.
#pragma once

#include <cstdint>

#include "comm/c10d/work.h"

namespace agspeed::comm {

class Coalescing {
 public:
  using Handle = c10::intrusive_ptr<Work>;

  Coalescing();

  void start();
  /// Whether this thread collects.
  bool isActive() const;
  /// Hands out `work` to whoever started it, or makes it part of what this thread collects. Returns: what it is now.
  Handle add(Handle work);
  /// What this thread has collected so far; null where it is nothing. Requires: isActive().
  Handle collected() const;
  /// Hands out what was collected; null where it is nothing.
  Handle end();

 private:
  const uint64_t serial_;  ///< of this object in its process
};

}  // namespace agspeed::comm
