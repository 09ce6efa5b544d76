// SPDX-License-Identifier: Apache-2.0
#include "comm/network/network_options.h"

#include <tuple>

#include "comm/topology/interface_selector.h"
#include "runtime/base/settings.h"

namespace agspeed::comm {

StatusOr<NetworkOptions> NetworkOptions::fromSettings(int rank, int size) {
  AG_RETURN_IF_ERROR(checkSettings());
  const Settings& all = settings();
  NetworkOptions options;
  options.rank = rank;
  options.size = size;
  std::tie(options.interfacesFrom, options.interfaces) = interfaceSelection();
  options.mode = all.commMode;
  options.peerTimeout = std::chrono::milliseconds(all.peerTimeoutMs);
  options.flowsPerInterface = all.flowsPerInterface;
  options.sharesMemory = all.sharedMemory;
  AG_ASSIGN_OR_RETURN(options.key, loadJobKey(all.jobKey, all.jobKeyFile));
  return options;
}

}  // namespace agspeed::comm
