// SPDX-License-Identifier: Apache-2.0
#include "comm/network/network_options.h"

#include <tuple>

#include "comm/topology/interface_selector.h"
#include "runtime/base/knobs.h"

namespace agspeed::comm {

StatusOr<NetworkOptions> NetworkOptions::fromKnobs(int rank, int size) {
  NetworkOptions options;
  options.rank = rank;
  options.size = size;
  std::tie(options.interfacesFrom, options.interfaces) = interfaceSelection();
  options.mode = knobs().commMode;
  options.peerTimeout = std::chrono::milliseconds(knobs().peerTimeoutMs);
  options.flowsPerInterface = knobs().flowsPerInterface;
  options.sharesMemory = knobs().sharedMemory;
  AG_ASSIGN_OR_RETURN(options.key, loadJobKey(knobs().jobKey, knobs().jobKeyFile));
  return options;
}

}  // namespace agspeed::comm
