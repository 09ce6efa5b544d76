// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl_net/device_facts.h"

#include <filesystem>
#include <fstream>
#include <functional>

#include "comm/topology/interfaces.h"

namespace agspeed::comm::nccl {
namespace {

constexpr int kUnknownSpeed = 10000;

int speedOf(const std::string& folder, const std::string& name) {
  std::ifstream file(folder + "/" + name + "/speed");
  int speed = 0;
  return file >> speed && speed > 0 ? speed : kUnknownSpeed;
}

/// Empty: it is no PCI device.
std::string pciPathOf(const std::string& folder, const std::string& name) {
  std::error_code failure;
  const std::filesystem::path path = std::filesystem::canonical(folder + "/" + name + "/device", failure);
  return failure || path.string().find("/pci") == std::string::npos ? "" : path.string();
}

}  // namespace

DeviceFacts factsOf(const std::vector<Interface>& interfaces, const std::string& folder) {
  DeviceFacts facts;
  facts.name = "agspeed";
  facts.guid = std::hash<std::string>()(hostIdentity());
  for (const Interface& each : interfaces) {
    facts.speed += speedOf(folder, each.name);
    if (facts.pciPath.empty()) facts.pciPath = pciPathOf(folder, each.name);
  }
  return facts;
}

}  // namespace agspeed::comm::nccl
