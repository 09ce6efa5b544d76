// SPDX-License-Identifier: Apache-2.0
#include "comm/transport/tcp/socket.h"

#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "runtime/base/system_error.h"

namespace agspeed::comm::tcp {
namespace {

constexpr int kBacklog = 4096;  ///< all ranks of a large job may connect at once; the kernel may allow less

struct SocketAddress {
  sockaddr_storage storage = {};
  socklen_t size = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

SocketAddress toSocketAddress(const topology::IpAddress& address, uint16_t port) {
  SocketAddress result;
  if (address.isV6) {
    auto* v6 = reinterpret_cast<sockaddr_in6*>(&result.storage);
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(port);
    std::memcpy(&v6->sin6_addr, address.bytes.data(), 16);
    result.size = sizeof(*v6);
    return result;
  }
  auto* v4 = reinterpret_cast<sockaddr_in*>(&result.storage);
  v4->sin_family = AF_INET;
  v4->sin_port = htons(port);
  std::memcpy(&v4->sin_addr, address.bytes.data(), 4);
  result.size = sizeof(*v4);
  return result;
}

Socket openSocket(bool isV6) {
  return Socket(socket(isV6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

void setOption(int descriptor, int level, int option, int value) {
  // Ignore failures. Options only make connections faster, and a kernel without an option still carries frames.
  (void)setsockopt(descriptor, level, option, &value, sizeof(value));
}

Status failure(const std::string& what, const topology::IpAddress& address, uint16_t port) {
  return unavailable("cannot {} {} port {}: {}", what, toString(address), port, describeError(errno));
}

Moved movedBy(ssize_t result) {
  if (result > 0) return {static_cast<size_t>(result), true};
  return {0, result < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)};
}

msghdr messageOf(std::span<const iovec> parts) {
  msghdr message = {};
  message.msg_iov = const_cast<iovec*>(parts.data());
  message.msg_iovlen = parts.size();
  return message;
}

}  // namespace

StatusOr<Socket> Socket::listen(rendezvous::RailAddress& address) {
  Socket socket = openSocket(address.address.isV6);
  if (!socket.isOpen()) return failure("listen on", address.address, address.port);
  setOption(socket.descriptor_, SOL_SOCKET, SO_REUSEADDR, 1);
  SocketAddress at = toSocketAddress(address.address, address.port);
  if (bind(socket.descriptor_, at.get(), at.size) != 0 || ::listen(socket.descriptor_, kBacklog) != 0) {
    return failure("listen on", address.address, address.port);
  }
  if (getsockname(socket.descriptor_, reinterpret_cast<sockaddr*>(&at.storage), &at.size) != 0) {
    return failure("listen on", address.address, address.port);
  }
  // The port is at the same offset for IPv4 and IPv6.
  address.port = ntohs(reinterpret_cast<const sockaddr_in*>(&at.storage)->sin_port);
  return socket;
}

StatusOr<Socket> Socket::connect(const topology::IpAddress& source, const std::string& device,
                                 const rendezvous::RailAddress& target, bool hasSmallPackets) {
  Socket socket = openSocket(source.isV6);
  if (!socket.isOpen()) return failure("send from", source, 0);
  if (hasSmallPackets) setOption(socket.descriptor_, IPPROTO_TCP, TCP_MAXSEG, kSmallPacketPayload);
  if (!device.empty()) {
    // The kernel may refuse this call to an unprivileged process. Then only the source address selects the interface.
    (void)setsockopt(socket.descriptor_, SOL_SOCKET, SO_BINDTODEVICE, device.data(),
                     static_cast<socklen_t>(device.size()));
  }
  setOption(socket.descriptor_, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1);
  const SocketAddress from = toSocketAddress(source, 0);
  const SocketAddress to = toSocketAddress(target.address, target.port);
  if (bind(socket.descriptor_, from.get(), from.size) != 0) return failure("send from", source, 0);
  socket.avoidBbr();
  if (::connect(socket.descriptor_, to.get(), to.size) != 0 && errno != EINPROGRESS) {
    return failure("connect to", target.address, target.port);
  }
  return socket;
}

void Socket::close() {
  if (descriptor_ >= 0) ::close(descriptor_);
  descriptor_ = -1;
}

void Socket::reset() {
  const linger abort = {1, 0};
  if (descriptor_ >= 0) (void)setsockopt(descriptor_, SOL_SOCKET, SO_LINGER, &abort, sizeof(abort));
  close();
}

std::optional<Socket> Socket::accept() const {
  const int descriptor = accept4(descriptor_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
  return descriptor < 0 ? std::nullopt : std::optional<Socket>(Socket(descriptor));
}

int Socket::connectError() const {
  int error = 0;
  socklen_t size = sizeof(error);
  return getsockopt(descriptor_, SOL_SOCKET, SO_ERROR, &error, &size) == 0 ? error : errno;
}

void Socket::prepare() const {
  setOption(descriptor_, IPPROTO_TCP, TCP_NODELAY, 1);
  // Keepalive closes an idle connection after a few seconds if the other host has vanished.
  setOption(descriptor_, SOL_SOCKET, SO_KEEPALIVE, 1);
  setOption(descriptor_, IPPROTO_TCP, TCP_KEEPIDLE, 2);
  setOption(descriptor_, IPPROTO_TCP, TCP_KEEPINTVL, 1);
  setOption(descriptor_, IPPROTO_TCP, TCP_KEEPCNT, 4);
}

/// BBR is unsuitable here. It mistakes the rate of small frames, which wait behind other connections, for the rate of
/// the path. Then it paces large frames at this low rate. Example on a link of 1 Gbit/s: BBR sent 30 KB, then paused
/// for 60 ms.
///
/// Call this before connect(), because the kernel continues to pace a connection that began with BBR. The first round
/// trip determines the pacing rate. It may include a second in which the kernel waited for the peer's link address
/// (ARP). Example when a link returned: stalls of 600 to 1000 ms.
void Socket::avoidBbr() const {
  std::array<char, 16> name = {};
  socklen_t size = name.size() - 1;
  if (getsockopt(descriptor_, IPPROTO_TCP, TCP_CONGESTION, name.data(), &size) != 0) return;
  if (!std::string_view(name.data()).starts_with("bbr")) return;
  for (const std::string_view other : {"cubic", "reno"}) {
    const auto length = static_cast<socklen_t>(other.size());
    if (setsockopt(descriptor_, IPPROTO_TCP, TCP_CONGESTION, other.data(), length) == 0) return;
  }
}

void Socket::setNotSentLowat(int numBytes) const { setOption(descriptor_, IPPROTO_TCP, TCP_NOTSENT_LOWAT, numBytes); }

void Socket::setReceiveLowat(int numBytes) const { setOption(descriptor_, SOL_SOCKET, SO_RCVLOWAT, numBytes); }

void Socket::setSendBuffer(int numBytes) const {
  static const bool canBeLifted = [this] {
    int lock = 0;
    socklen_t size = sizeof lock;
    return getsockopt(descriptor_, SOL_SOCKET, SO_BUF_LOCK, &lock, &size) == 0;
  }();
  if (!canBeLifted) return;
  // Set half of the limit, because the kernel doubles the value to leave room for its own overhead. This overhead is
  // small for large writes.
  numBytes > 0 ? setOption(descriptor_, SOL_SOCKET, SO_SNDBUF, numBytes / 2)
               : setOption(descriptor_, SOL_SOCKET, SO_BUF_LOCK, 0);
}

Moved Socket::read(std::span<const iovec> parts) const {
  msghdr message = messageOf(parts);
  return movedBy(recvmsg(descriptor_, &message, 0));
}

Moved Socket::write(std::span<const iovec> parts) const {
  const msghdr message = messageOf(parts);
  return movedBy(sendmsg(descriptor_, &message, MSG_NOSIGNAL));
}

size_t Socket::unacknowledgedBytes() const {
  int numBytes = 0;
  return ioctl(descriptor_, SIOCOUTQ, &numBytes) == 0 && numBytes > 0 ? static_cast<size_t>(numBytes) : 0;
}

size_t Socket::unsentBytes() const {
  int numBytes = 0;
  return ioctl(descriptor_, SIOCOUTQNSD, &numBytes) == 0 && numBytes > 0 ? static_cast<size_t>(numBytes) : 0;
}

TcpInfo Socket::tcpInfo() const {
  tcp_info info = {};
  socklen_t size = sizeof(info);
  if (getsockopt(descriptor_, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return {};
  TcpInfo tcpInfo;
  tcpInfo.bytesAcked = info.tcpi_bytes_acked;
  tcpInfo.packetsInFlight = info.tcpi_unacked;
  tcpInfo.sinceLastAck = std::chrono::milliseconds(info.tcpi_last_ack_recv);
  tcpInfo.roundTripSeconds = info.tcpi_rtt * 1e-6;
  tcpInfo.minRoundTripSeconds = info.tcpi_min_rtt * 1e-6;
  return tcpInfo;
}

}  // namespace agspeed::comm::tcp
