// SPDX-License-Identifier: Apache-2.0
// The devices that NCCL is shown: all interfaces as one, those of a NUMA node, or each by itself. A device's interfaces
// are home to its connections, the others help out. Reads sysfs; thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/channel/domain.h"

namespace agspeed::comm::nccl {

struct Device {
  std::string name;     ///< "agspeed", "numa1" or an interface's
  std::string pciPath;  ///< of its first interface that is a PCI device; empty: none is
  uint64_t guid = 0;
  int speed = 0;  ///< Mbit/s, of its interfaces together
  Home home;      ///< empty: all
};

/// One at least. `kind`: as the setting nccl_devices. `folder`: the kernel's list of interfaces. An interface that does
/// not say how fast it is counts as 10 Gbit/s; one that does not say where it is belongs to node 0.
std::vector<Device> devicesOf(const std::vector<Interface>& interfaces, const std::string& kind,
                              const std::string& folder = "/sys/class/net");

}  // namespace agspeed::comm::nccl
