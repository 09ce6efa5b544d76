// SPDX-License-Identifier: Apache-2.0
// Counters of the traffic through shared memory with all peers, for reports. One thread at a time.
#pragma once

#include <cstdint>

namespace agspeed::comm::shm {

struct ShmCounters {
  uint64_t numFrames = 0;       ///< sent
  uint64_t numBytes = 0;        ///< of payload, sent
  uint64_t numCopiedBytes = 0;  ///< of payload, written to rings
  uint64_t numReadBytes = 0;    ///< of payload, read from the memory of peers
  uint64_t numRefusals = 0;     ///< payloads that a peer could not read from this rank's memory
  uint64_t numRings = 0;        ///< sleeping peers woken
};

}  // namespace agspeed::comm::shm
