// SPDX-License-Identifier: Apache-2.0
#include "comm/network/network_options.h"

#include <tuple>

#include "comm/topology/interface_selector.h"
#include "runtime/base/settings.h"

namespace agspeed::comm {

StatusOr<NetworkOptions> NetworkOptions::fromSettings(int rank, int size) {
  NetworkOptions options;
  options.rank = rank;
  options.size = size;
  std::tie(options.interfacesFrom, options.interfaces) = interfaceSelection();
  options.mode = settings().commMode;
  options.peerTimeout = std::chrono::milliseconds(settings().peerTimeoutMs);
  options.flowsPerInterface = settings().flowsPerInterface;
  options.sharesMemory = settings().sharedMemory;
  AG_ASSIGN_OR_RETURN(options.key, loadJobKey(settings().jobKey, settings().jobKeyFile));
  return options;
}

}  // namespace agspeed::comm
