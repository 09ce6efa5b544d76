// SPDX-License-Identifier: Apache-2.0
// What NCCL is told of the device that stands for all interfaces. Reads sysfs; thread-safe.
#pragma once

#include <string>
#include <vector>

#include "comm/nccl_net/net.h"

namespace agspeed::comm::nccl {

/// `folder`: the kernel's list of interfaces. An interface that does not say how fast it is counts as 10 Gbit/s.
DeviceFacts factsOf(const std::vector<Interface>& interfaces, const std::string& folder = "/sys/class/net");

}  // namespace agspeed::comm::nccl
