// SPDX-License-Identifier: Apache-2.0
// Clock: time on a device, in nanoseconds from an arbitrary start. Only differences mean something.
//
// A host clock is read at once; a device clock answers for work that may still be queued, so reading one waits for it.
// Implementations are thread-safe and never go backwards.
#pragma once

#include <cstdint>

namespace agspeed::runtime {

class Clock {
 public:
  virtual ~Clock() = default;
  virtual int64_t nowNanoseconds() const = 0;
};

}  // namespace agspeed::runtime
