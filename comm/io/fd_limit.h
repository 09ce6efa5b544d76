// SPDX-License-Identifier: Apache-2.0
// The limit on open file descriptors: how many connections it allows, and reservations that raise it. The limit belongs
// to the process.
#pragma once

#include <cstddef>
#include <cstdint>

namespace agspeed::comm {

/// The largest number of rails per interface with which connections to all peers take at most half of
/// `numDescriptors`; at least 1.
int64_t flowsWithin(size_t numDescriptors, size_t numInterfaces, size_t numPeers);

/// How many descriptors the process may open after it has raised its limit as far as allowed.
size_t mostDescriptors();

/// Reserves descriptors for connections over `numRails` rails to `numPeers` peers. While reservations live, the
/// process's limit is at least twice the number of descriptors that all of them reserve, as far as it can be raised.
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
