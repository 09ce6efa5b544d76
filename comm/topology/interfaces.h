// SPDX-License-Identifier: Apache-2.0
// Facts about this host from the kernel: its interfaces, and an identity that shows which ranks share it.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "comm/topology/interface_selector.h"
#include "runtime/base/status.h"

namespace agspeed::comm {

/// All interfaces with an address, in the kernel's order. Thread-safe.
StatusOr<std::vector<Interface>> listInterfaces();

/// How many connections to each of `numPeers` other ranks saturate the interface `name`: 1, but more in clouds that
/// limit the rate of each connection. The adapter's PCI vendor identifies these clouds. NCCL's socket transport uses 16
/// (Amazon) or 4 (Google) connections between two ranks there. We use that many to all peers together, because ranks
/// talk to all of them at once, but at least 2 and at most 8 per peer. `folder`: the kernel's list of interfaces.
int connectionsToFill(const std::string& name, int numPeers, const std::string& folder = "/sys/class/net");

/// Where the selector comes from, and its text; both empty if there is none. The source is an environment variable
/// (agspeed's before NCCL's before Gloo's) or a line of a file.
std::pair<std::string, std::string> interfaceSelection();

/// Equal for two processes exactly if they share memory and network: the boot id and the network namespace.
std::string hostIdentity();

}  // namespace agspeed::comm
