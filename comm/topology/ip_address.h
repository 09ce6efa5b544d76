// SPDX-License-Identifier: Apache-2.0
// IpAddress: an IPv4 or IPv6 address as bytes, and as text. All functions are pure and thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace agspeed::comm::topology {

/// An IPv4 or IPv6 address without port.
struct IpAddress {
  bool isV6 = false;
  std::array<std::byte, 16> bytes{};  ///< an IPv4 address uses the first 4 bytes
  auto operator<=>(const IpAddress&) const = default;

  bool isLoopback() const;
  bool isLinkLocal() const;
};

std::optional<IpAddress> parseIpAddress(std::string_view text);
std::string toString(const IpAddress& address);
/// Returns whether both addresses are in one network, whose prefix has `prefixBits` bits.
bool isSameNetwork(const IpAddress& left, const IpAddress& right, int prefixBits);

}  // namespace agspeed::comm::topology
