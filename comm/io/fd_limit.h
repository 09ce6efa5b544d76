// SPDX-License-Identifier: Apache-2.0
// Functions for the process's limit on open file descriptors: they compute how many connections it allows, and raise it
// for reservations.
#pragma once

#include <cstddef>
#include <cstdint>

namespace agspeed::comm::io {

/// Returns the largest number of rails per interface with which connections to all peers take at most half of
/// `numDescriptors`; at least 1.
int64_t flowsWithin(size_t numDescriptors, size_t numInterfaces, size_t numPeers);

/// Returns the highest value to which the process may raise its limit on descriptors.
size_t mostDescriptors();

/// Makes sure that the process may open the descriptors of connections over `numRails` rails to `numPeers` peers. It
/// opens none itself. The constructor raises the process's limit to at least twice the number of descriptors that all
/// living reservations need, or as far as the system allows. The limit is not lowered again. Thread-safe.
class FdReservation {
 public:
  FdReservation(size_t numRails, size_t numPeers);
  ~FdReservation();
  FdReservation(const FdReservation&) = delete;

 private:
  const size_t numWanted_;
};

}  // namespace agspeed::comm::io
