// SPDX-License-Identifier: Apache-2.0
// RateMeter: how fast a connection carries what it is given, from looks at how much the peer's kernel has acknowledged.
//
// Only spans count in which bytes were under way all the time: one that waited for its sender says nothing of the path.
// The kernel's own estimate (tcpi_delivery_rate) keeps the burst that a shaper lets through after a pause, and counts
// small frames that wait behind other connections. Not thread-safe; no clock of its own.
#pragma once

#include <cstdint>

#include "comm/transport/transport.h"

namespace agspeed::comm::tcp {

class RateMeter {
 public:
  /// At `now` the peer's kernel had acknowledged `numAcked` bytes in all. `isIdle`: those were all there were.
  void look(Clock::time_point now, uint64_t numAcked, bool isIdle, double roundTripSeconds);

  /// Lately; 0 when not known yet.
  double bytesPerSecond() const { return bytesPerSecond_; }

 private:
  Clock::time_point since_;
  uint64_t ackedBefore_ = 0;
  double bytesPerSecond_ = 0;
};

}  // namespace agspeed::comm::tcp
