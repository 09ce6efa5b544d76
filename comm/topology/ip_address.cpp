// SPDX-License-Identifier: Apache-2.0
#include "comm/topology/ip_address.h"

#include <arpa/inet.h>

#include <cstring>

namespace agspeed::comm::topology {

bool IpAddress::isLoopback() const {
  if (!isV6) return bytes[0] == std::byte{127};
  IpAddress one{true, {}};
  one.bytes[15] = std::byte{1};
  return *this == one;
}

bool IpAddress::isLinkLocal() const {
  if (!isV6) return bytes[0] == std::byte{169} && bytes[1] == std::byte{254};
  return bytes[0] == std::byte{0xfe} && (bytes[1] & std::byte{0xc0}) == std::byte{0x80};
}

std::optional<IpAddress> parseIpAddress(std::string_view text) {
  const std::string terminated(text);
  IpAddress address;
  if (inet_pton(AF_INET, terminated.c_str(), address.bytes.data()) == 1) return address;
  address.isV6 = true;
  if (inet_pton(AF_INET6, terminated.c_str(), address.bytes.data()) == 1) return address;
  return std::nullopt;
}

std::string toString(const IpAddress& address) {
  char text[INET6_ADDRSTRLEN] = {};
  inet_ntop(address.isV6 ? AF_INET6 : AF_INET, address.bytes.data(), text, sizeof(text));
  return text;
}

bool isSameNetwork(const IpAddress& left, const IpAddress& right, int prefixBits) {
  if (left.isV6 != right.isV6) return false;
  const auto wholeBytes = static_cast<size_t>(prefixBits / 8);
  if (std::memcmp(left.bytes.data(), right.bytes.data(), wholeBytes) != 0) return false;
  const int rest = prefixBits % 8;
  return rest == 0 || (left.bytes[wholeBytes] ^ right.bytes[wholeBytes]) >> (8 - rest) == std::byte{0};
}

}  // namespace agspeed::comm::topology
