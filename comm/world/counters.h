// SPDX-License-Identifier: Apache-2.0
// Counters of everything that a process has sent and received, as one JSON text for Python: per rail, per operation,
// and in all.
#pragma once

#include <string>

#include "comm/network/network_messenger.h"
#include "comm/world/flight_record.h"

namespace agspeed::comm {

/// Requires: no other thread drives the messenger meanwhile.
std::string countersJson(const NetworkMessenger& messenger, FlightRecorder& recorder);

}  // namespace agspeed::comm
