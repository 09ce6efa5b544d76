// SPDX-License-Identifier: Apache-2.0
// The version of everything that ranks exchange: records in the store, handshakes, frames. Ranks of different versions
// refuse each other.
#pragma once

#include <cstdint>

namespace agspeed::comm::wire {

constexpr uint16_t kProtocolVersion = 6;

}  // namespace agspeed::comm::wire
