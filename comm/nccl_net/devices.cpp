// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl_net/devices.h"

#include <filesystem>
#include <fstream>
#include <functional>
#include <map>

#include "comm/topology/interfaces.h"

namespace agspeed::comm::nccl {
namespace {

constexpr int kUnknownSpeed = 10000;

/// Returns the number in the file. Returns `otherwise` if the file has no number, or a number below `least`.
int numberIn(const std::string& path, int least, int otherwise) {
  std::ifstream file(path);
  int number = 0;
  return file >> number && number >= least ? number : otherwise;
}

/// Returns the PCI path of the interface, or an empty text if it is not a PCI device.
std::string pciPathOf(const std::string& folder, const std::string& name) {
  std::error_code failure;
  const std::filesystem::path path = std::filesystem::canonical(folder + "/" + name + "/device", failure);
  return failure || path.string().find("/pci") == std::string::npos ? "" : path.string();
}

}  // namespace

std::vector<Device> devicesOf(const std::vector<topology::Interface>& interfaces, const std::string& kind,
                              const std::string& folder) {
  std::map<int, std::vector<const topology::Interface*>> nodes;
  for (const topology::Interface& each : interfaces) {
    nodes[numberIn(folder + "/" + each.name + "/device/numa_node", 0, 0)].push_back(&each);
  }
  std::vector<Device> devices;
  const auto add = [&](const std::string& name, const std::vector<const topology::Interface*>& members) {
    Device& device = devices.emplace_back();
    device.name = name;
    device.guid = std::hash<std::string>()(topology::hostIdentity()) + devices.size() - 1;
    for (const topology::Interface* each : members) {
      device.speed += numberIn(folder + "/" + each->name + "/speed", 1, kUnknownSpeed);
      if (device.pciPath.empty()) device.pciPath = pciPathOf(folder, each->name);
      if (members.size() < interfaces.size()) device.home.push_back(each->name);
    }
  };
  if (kind == "nic") {
    for (const topology::Interface& each : interfaces) add(each.name, {&each});
  } else if (kind == "numa" || (kind.empty() && nodes.size() > 1)) {
    for (const auto& [node, members] : nodes) add("numa" + std::to_string(node), members);
  } else {
    std::vector<const topology::Interface*> all;
    for (const topology::Interface& each : interfaces) all.push_back(&each);
    add("agspeed", all);
  }
  return devices;
}

}  // namespace agspeed::comm::nccl
