// SPDX-License-Identifier: Apache-2.0
// RateEstimator: how fast a connection, or several of a rail together, carries what it is given, from looks at how much
// the peers' kernels have acknowledged.
//
// Only spans count in which bytes were under way all the time: one that waited for its sender says nothing of the path.
// The kernel's own estimate (tcpi_delivery_rate) keeps the burst that a shaper lets through after a pause, and counts
// small frames that wait behind other connections. Not thread-safe; no clock of its own.
#pragma once

#include <cstdint>

#include "comm/transport/transport.h"

namespace agspeed::comm::tcp {

class RateEstimator {
 public:
  /// At `now` `numAcked` bytes were acknowledged in all. `isIdle`: too few others were under way to tell a rate by.
  void look(Clock::time_point now, uint64_t numAcked, bool isIdle, double roundTripSeconds);

  /// All connections of the rail have carried `numAckedOfAll` bytes so far and carry `rateOfAll` bytes per second (0:
  /// not known). The rate is forgotten when it was measured before they carried what they do in half a second: who
  /// seems slow is given nothing by which its rate could be measured again.
  void age(uint64_t numAckedOfAll, double rateOfAll);

  /// Lately; 0 when not known yet.
  double bytesPerSecond() const { return bytesPerSecond_; }
  /// In the better times of late, when nothing else than the path held it up: over a tenth of a second, in which bursts
  /// weigh little; 0 when not known yet.
  double bestBytesPerSecond() const { return bestBytesPerSecond_; }

 private:
  void lookForBest(double seconds, double numBytes);

  Clock::time_point since_;
  uint64_t ackedBefore_ = 0;
  double bytesPerSecond_ = 0;
  bool isNew_ = false;          ///< measured since the last age()
  uint64_t measuredAfter_ = 0;  ///< bytes of all connections
  double seconds_ = 0;          ///< and what was acknowledged in them, since the last time that was long enough
  double numBytes_ = 0;
  double bestBytesPerSecond_ = 0;
};

}  // namespace agspeed::comm::tcp
