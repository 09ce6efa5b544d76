// SPDX-License-Identifier: Apache-2.0
// File descriptors, of which a process may open only so many: how many connections they suffice for, and reservations
// that raise the limit. The limit belongs to the process.
#pragma once

#include <cstddef>
#include <cstdint>

namespace agspeed::comm {

/// Rails on each of `numInterfaces` interfaces, so many that connections to all peers take at most half of the
/// descriptors that the process may open; at least 1.
int64_t flowsWithin(size_t numDescriptors, size_t numInterfaces, size_t numPeers);

/// How many descriptors the process may open once it has raised its limit as far as it may.
size_t mostDescriptors();

/// Reserves descriptors for connections over `numRails` rails to `numPeers` peers. While it lives the process may open
/// at least twice as many descriptors as all living reservations may take, so far as its limit can be raised.
/// Thread-safe.
class FdReservation {
 public:
  FdReservation(size_t numRails, size_t numPeers);
  ~FdReservation();
  FdReservation(const FdReservation&) = delete;

 private:
  const size_t numWanted_;
};

}  // namespace agspeed::comm
