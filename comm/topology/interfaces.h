// SPDX-License-Identifier: Apache-2.0
// Reads facts about this host from the kernel: its network interfaces, and an identity that shows which ranks share the
// host.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "comm/topology/interface_selector.h"
#include "runtime/base/status.h"

namespace agspeed::comm::topology {

/// Returns all interfaces that have an address, once per address, in the kernel's order. Thread-safe.
StatusOr<std::vector<Interface>> listInterfaces();

/// Returns how many connections to each of `numPeers` other ranks saturate the interface `name`. The result is 1,
/// except in clouds that limit the rate of each connection. The PCI vendor of the adapter identifies these clouds.
/// NCCL's socket transport uses n = 16 (Amazon) or 4 (Google) connections between two ranks there. Ranks send to all
/// peers at once, so this function returns n / numPeers, rounded up, but at least 2 and at most 8. `folder`: the
/// kernel's list of interfaces.
int connectionsToFill(const std::string& name, int numPeers, const std::string& folder = "/sys/class/net");

/// Returns the source and the text of the list of interfaces; both are empty if there is none. The source is an
/// environment variable (agspeed's before NCCL's before Gloo's) or a line of a file.
std::pair<std::string, std::string> interfaceSelection();

/// Returns the boot id of the host and the number of this process's network namespace. The text is equal for two
/// processes exactly if they have the same host and the same network namespace.
std::string hostIdentity();

}  // namespace agspeed::comm::topology
