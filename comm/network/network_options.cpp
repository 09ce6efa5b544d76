// SPDX-License-Identifier: Apache-2.0
#include "comm/network/network_options.h"

#include <tuple>

#include "comm/topology/interface_selector.h"
#include "runtime/base/settings.h"

namespace agspeed::comm::network {
namespace {

constexpr std::string_view kOpportunistic = "opportunistic";

}  // namespace

StatusOr<NetworkOptions> NetworkOptions::fromSettings(int rank, int size) {
  AG_RETURN_IF_ERROR(checkSettings());
  const Settings& all = settings();
  NetworkOptions options;
  options.rank = rank;
  options.size = size;
  std::tie(options.interfacesFrom, options.interfaces) = topology::interfaceSelection();
  options.mode = all.commMode;
  options.peerTimeout = std::chrono::milliseconds(all.peerTimeoutMs);
  options.flowsPerInterface = all.flowsPerInterface;
  options.sharesMemory = all.sharedMemory;
  AG_ASSIGN_OR_RETURN(options.key, security::loadJobKey(all.jobKey, all.jobKeyFile));
  return options;
}

StatusOr<std::string> NetworkOptions::resolvedMode() const {
  const std::string resolved = !mode.empty() ? mode
                               : key.empty() ? std::string(kOpportunistic)
                                             : std::string(toString(security::Protection::kAuthenticated));
  if (resolved != kOpportunistic && !security::protectionFromString(resolved)) {
    return invalidArgument("AGSPEED_COMM_MODE: '" + resolved +
                           "' is not a mode: use integrity, authenticated, encrypted or opportunistic");
  }
  if (resolved != kOpportunistic && resolved != toString(security::Protection::kIntegrity) && key.empty()) {
    return invalidArgument(
        "mode {} needs a job key: set AGSPEED_JOB_KEY or AGSPEED_JOB_KEY_FILE on all ranks, or use mode opportunistic",
        resolved);
  }
  return resolved;
}

security::Protection NetworkOptions::protectionIn(const std::string& mode) {
  return security::protectionFromString(mode).value_or(security::Protection::kAuthenticated);
}

}  // namespace agspeed::comm::network
