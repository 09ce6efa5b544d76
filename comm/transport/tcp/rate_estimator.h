// SPDX-License-Identifier: Apache-2.0
// RateEstimator: estimates the rate of a connection, or of all connections of a rail together, in bytes per second. Its
// input is samples of the number of bytes that the peers' kernels have acknowledged.
//
// It measures only time spans in which bytes were always in flight, because an idle connection does not show the speed
// of the path. The kernel's own estimate (tcpi_delivery_rate) is unsuitable for two reasons. After a pause, a traffic
// shaper lets a burst through, and the kernel keeps the rate of this burst. Small frames wait behind other connections,
// and the kernel takes their low rate for the rate of the path. Not thread-safe; no clock of its own.
#pragma once

#include <cstdint>

#include "comm/transport/transport.h"

namespace agspeed::comm::tcp {

class RateEstimator {
 public:
  /// Adds a sample. `numAcked`: all bytes that were acknowledged until `now`. `isIdle`: too few bytes are in flight to
  /// measure a rate. `roundTripSeconds`: the shortest round trip.
  void update(io::Clock::time_point now, uint64_t numAcked, bool isIdle, double roundTripSeconds);

  /// Forgets the rate if it is old: if all connections of the rail together have carried more than `rateOfAll` * 0.5 s
  /// bytes since it was measured. `numAckedOfAll`: bytes that all connections have carried so far. `rateOfAll`: their
  /// bytes per second together; 0: not known. Without this function, the rate of a connection that seems slow would
  /// never be measured again, because the connection gets no frames.
  void age(uint64_t numAckedOfAll, double rateOfAll);

  /// Returns the recent rate; 0: not measured.
  double bytesPerSecond() const { return bytesPerSecond_; }
  /// Returns the recent peak rate; 0: not measured. It is measured over windows of 100 ms, in which bursts weigh
  /// little. It rises quickly and falls slowly.
  double bestBytesPerSecond() const { return bestBytesPerSecond_; }

 private:
  /// Adds a measured span to the current window of the peak rate, and updates the peak rate at the window's end.
  void updatePeak(double seconds, double numBytes);

  io::Clock::time_point since_;
  uint64_t ackedBefore_ = 0;
  double bytesPerSecond_ = 0;
  bool isNew_ = false;          ///< the rate was measured since the last age()
  uint64_t measuredAfter_ = 0;  ///< the value of numAckedOfAll at the last measurement
  double seconds_ = 0;          ///< length of the current window of the peak rate
  double numBytes_ = 0;         ///< bytes acknowledged in the current window of the peak rate
  double bestBytesPerSecond_ = 0;
};

}  // namespace agspeed::comm::tcp
