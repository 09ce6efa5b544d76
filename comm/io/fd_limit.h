// SPDX-License-Identifier: Apache-2.0
// Descriptors, of which a process may open only so many: making do with those that it may, and waiting for more.
//
// Both belong to the process.
#pragma once

#include <cstddef>
#include <cstdint>

namespace agspeed::comm {

/// Rails on each of `numInterfaces` interfaces, so many that connections to all peers take at most half of the
/// descriptors that the process may open; at least 1.
int64_t flowsWithin(size_t numDescriptors, size_t numInterfaces, size_t numPeers);

/// How many descriptors the process may open once it has raised its limit as far as it may.
size_t mostDescriptors();

/// Room for connections over `numRails` rails to `numPeers` peers. While it lives the process may open at least twice
/// as many descriptors as all living rooms may take, so far as its limit can be raised. Thread-safe.
class FdReservation {
 public:
  FdReservation(size_t numRails, size_t numPeers);
  ~FdReservation();
  FdReservation(const FdReservation&) = delete;

 private:
  const size_t numWanted_;
};

}  // namespace agspeed::comm
