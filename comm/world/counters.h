// SPDX-License-Identifier: Apache-2.0
// Writes the counters of sent and received data of a process as one JSON text for Python: per rail, per operation, and
// in total.
#pragma once

#include <string>

#include "comm/engine/wire_coder.h"
#include "comm/network/network_messenger.h"
#include "comm/world/flight_record.h"

namespace agspeed::comm::world {

/// Returns the name of the interface with this address. Returns an empty text if no interface has it, or if the
/// kernel's list cannot be read.
std::string interfaceOf(const topology::IpAddress& address);

/// Returns the counters of the messenger and of coded messages, and the totals of the recorder. Requires: no other
/// thread drives the messenger during the call.
std::string countersJson(const network::NetworkMessenger& messenger, const engine::WireCoder::Counters& coded,
                         FlightRecorder& recorder);

}  // namespace agspeed::comm::world
