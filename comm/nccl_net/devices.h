// SPDX-License-Identifier: Apache-2.0
// The devices that NCCL sees: one for all interfaces, one per NUMA node, or one per interface. A connection prefers the
// interfaces of its device. It uses another interface for data that would arrive there much sooner. Reads sysfs;
// thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/channel/domain.h"

namespace agspeed::comm::nccl {

/// One device in NCCL's sense.
struct Device {
  std::string name;     ///< "agspeed", "numa1" or an interface's name
  std::string pciPath;  ///< path of its first interface that is a PCI device; empty: there is none
  uint64_t guid = 0;
  int speed = 0;       ///< sum of the speeds of its interfaces, in Mbit/s
  channel::Home home;  ///< interfaces that its connections prefer; empty: all
};

/// Returns the devices, at least one. `kind`: the value of the setting nccl_devices. `folder`: the kernel's list of
/// interfaces. If an interface reports no speed, 10 Gbit/s are assumed. An interface that reports no NUMA node belongs
/// to node 0.
std::vector<Device> devicesOf(const std::vector<topology::Interface>& interfaces, const std::string& kind,
                              const std::string& folder = "/sys/class/net");

}  // namespace agspeed::comm::nccl
