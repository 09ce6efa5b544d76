// SPDX-License-Identifier: Apache-2.0
#include "comm/rendezvous/store_address.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <cstring>
#include <memory>

namespace agspeed::comm::rendezvous {

StatusOr<StoreAddress> StoreAddress::parse(const std::string& text) {
  const size_t colon = text.rfind(':');
  std::string host = text.substr(0, colon == std::string::npos ? 0 : colon);
  const std::string port = colon == std::string::npos ? "" : text.substr(colon + 1);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  const bool isNumber = !port.empty() && port.size() <= 5 && port.find_first_not_of("0123456789") == std::string::npos;
  if (host.empty() || !isNumber || std::stoi(port) > UINT16_MAX) {
    return invalidArgument("'{}' is not an address: write HOST:PORT, like 10.0.0.1:29500", text);
  }
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(host.c_str(), port.c_str(), &hints, &found); error != 0) {
    return unavailable("the host of '{}' cannot be looked up: {}", text, gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owned(found, &freeaddrinfo);
  StoreAddress address;
  std::memcpy(&address.system, found->ai_addr, found->ai_addrlen);
  address.systemBytes = found->ai_addrlen;
  address.text = text;
  return address;
}

io::FileDescriptor StoreAddress::socket(int flags) const {
  io::FileDescriptor made(::socket(system.ss_family, SOCK_STREAM | SOCK_CLOEXEC | flags, 0));
  const int on = 1;
  if (made.isOpen()) setsockopt(made.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  return made;
}

}  // namespace agspeed::comm::rendezvous
