// SPDX-License-Identifier: Apache-2.0
// Describes the rails to one peer as plain values, for reports about a hang. Functions without side effects.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "comm/transport/multirail/reachability.h"
#include "comm/transport/multirail/send_window.h"

namespace agspeed::comm::multirail {

/// The state of the rails to one peer.
struct RouteState {
  struct Rail {
    bool isUp = false;
    uint64_t numBytesInFlight = 0;  ///< bytes that were sent and are not acknowledged
  };
  std::vector<Rail> rails;
  size_t numToResend = 0;                     ///< frames to retransmit, because their rail was lost or timed out
  std::chrono::milliseconds unreachedFor{0};  ///< how long no rail has led to the peer
  std::string lastFailure;                    ///< last failure of a rail, as the end of a sentence; empty: none
  bool isLost = false;
};

RouteState routeState(size_t numRails, const Reachability& reachability, const SendWindow& window);

}  // namespace agspeed::comm::multirail
