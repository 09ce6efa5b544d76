// SPDX-License-Identifier: Apache-2.0
// What the kernel knows about this host: interfaces, and which ranks share the host.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "comm/topology/interface_selector.h"
#include "runtime/base/status.h"

namespace agspeed::comm {

/// All interfaces with an address, in the kernel's order. Thread-safe.
StatusOr<std::vector<Interface>> listInterfaces();

/// How many connections to each of `numPeers` other ranks fill the interface `name`: 1, but more in clouds that limit
/// the rate of each. There (told by the adapter's PCI vendor) NCCL's socket transport uses 16 (Amazon) or 4 (Google)
/// between two ranks; we use so many to all peers together, since ranks talk to all of them at once, but 2 to 8 to
/// each. `folder`: the kernel's list of interfaces.
int connectionsToFill(const std::string& name, int numPeers, const std::string& folder = "/sys/class/net");

/// What selects interfaces, an environment variable (agspeed's before NCCL's before Gloo's) or a line of a file, and
/// the selector; both empty when nothing does.
std::pair<std::string, std::string> interfaceSelection();

/// Equal for two processes exactly when they share memory and network: the boot and the network namespace.
std::string hostIdentity();

}  // namespace agspeed::comm
