// SPDX-License-Identifier: Apache-2.0
// Counters of the traffic through shared memory with all peers, for reports. One thread at a time.
#pragma once

#include <cstdint>

namespace agspeed::comm::shm {

struct ShmCounters {
  uint64_t numFrames = 0;       ///< frames sent
  uint64_t numBytes = 0;        ///< payload bytes sent
  uint64_t numCopiedBytes = 0;  ///< payload bytes written to rings
  uint64_t numReadBytes = 0;    ///< payload bytes read from the memory of peers
  uint64_t numRefusals = 0;     ///< payloads that a peer could not read from this rank's memory
  uint64_t numRings = 0;        ///< how often a sleeping peer was woken
};

}  // namespace agspeed::comm::shm
