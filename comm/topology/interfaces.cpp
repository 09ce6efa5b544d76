// SPDX-License-Identifier: Apache-2.0
#include "comm/topology/interfaces.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>
#include <optional>

#include "runtime/base/format.h"
#include "runtime/base/settings.h"
#include "runtime/base/system_error.h"

namespace agspeed::comm::topology {
namespace {

// PCI vendors of network adapters.
constexpr std::string_view kAmazon = "0x1d0f";
constexpr std::string_view kGoogle = "0x1ae0";

std::optional<IpAddress> toIpAddress(const sockaddr* address) {
  if (address == nullptr) return std::nullopt;
  IpAddress result;
  if (address->sa_family == AF_INET) {
    std::memcpy(result.bytes.data(), &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, 4);
    return result;
  }
  if (address->sa_family != AF_INET6) return std::nullopt;
  result.isV6 = true;
  std::memcpy(result.bytes.data(), &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr, 16);
  return result;
}

int countBits(const std::optional<IpAddress>& mask) {
  int bits = 0;
  if (mask) {
    for (const std::byte byte : mask->bytes) bits += std::popcount(std::to_integer<unsigned>(byte));
  }
  return bits;
}

bool isRunning(unsigned flags) { return (flags & IFF_UP) != 0 && (flags & IFF_RUNNING) != 0; }

}  // namespace

StatusOr<std::vector<Interface>> listInterfaces() {
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) return unavailable("cannot list interfaces: {}", describeError(errno));
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(first, &freeifaddrs);
  std::vector<Interface> result;
  for (const ifaddrs* item = first; item != nullptr; item = item->ifa_next) {
    if (const std::optional<IpAddress> address = toIpAddress(item->ifa_addr)) {
      result.push_back(
          {item->ifa_name, *address, countBits(toIpAddress(item->ifa_netmask)), isRunning(item->ifa_flags)});
    }
  }
  return result;
}

int connectionsToFill(const std::string& name, int numPeers, const std::string& folder) {
  std::string vendor;
  std::ifstream(folder + "/" + name + "/device/vendor") >> vendor;
  if (vendor != kAmazon && vendor != kGoogle) return 1;
  const int inAll = vendor == kAmazon ? 16 : 4;
  numPeers = std::max(numPeers, 1);
  return std::clamp((inAll + numPeers - 1) / numPeers, 2, 8);
}

std::pair<std::string, std::string> interfaceSelection() {
  const Settings& all = settings();
  const auto origin = all.origins.find("socket_interfaces");
  return {origin == all.origins.end() ? "" : origin->second, all.socketInterfaces};
}

std::string hostIdentity() {
  std::string identity;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> identity;
  struct stat info = {};
  if (stat("/proc/self/ns/net", &info) == 0) identity += formatText(":{}", info.st_ino);
  return identity;
}

}  // namespace agspeed::comm::topology
