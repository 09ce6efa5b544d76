// SPDX-License-Identifier: Apache-2.0
#include "comm/transport/multirail/route_state.h"

namespace agspeed::comm::multirail {

RouteState routeState(size_t numRails, const Reachability& reachability, const SendWindow& window) {
  RouteState state;
  std::vector<uint64_t> numBytes(numRails, 0);
  window.addBytesInFlight(numBytes);
  for (size_t rail = 0; rail < numRails; ++rail) state.rails.push_back({reachability.isUp(rail), numBytes[rail]});
  state.numToResend = window.numToResend();
  if (reachability.isSought()) state.unreachedFor = reachability.downFor(io::Clock::now());
  state.lastFailure = reachability.lastFailure();
  state.isLost = reachability.isLost();
  return state;
}

}  // namespace agspeed::comm::multirail
