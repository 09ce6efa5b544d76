// SPDX-License-Identifier: Apache-2.0
// Socket: a TCP descriptor that closes itself, and the few calls that the rail needs. All sockets are non-blocking and
// closed on exec. One thread at a time.
#pragma once

#include <sys/uio.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "comm/rendezvous/peer_record.h"
#include "runtime/base/status.h"

namespace agspeed::comm::tcp {

/// The result of a read or write: the number of transferred bytes, 0 if the call would block. `isOpen` is false if the
/// connection cannot be used any more.
struct Moved {
  size_t numBytes = 0;
  bool isOpen = true;
};

/// The kernel's view of a connection.
struct TcpInfo {
  uint64_t bytesAcked = 0;
  uint32_t packetsInFlight = 0;
  std::chrono::milliseconds sinceLastAck{0};
  double roundTripSeconds = 0;     ///< smoothed round trip, including the time in the path's queues
  double minRoundTripSeconds = 0;  ///< shortest round trip so far, nearly without waiting in queues
};

class Socket {
 public:
  Socket() = default;
  explicit Socket(int descriptor) : descriptor_(descriptor) {}
  ~Socket() { close(); }
  Socket(Socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }

  /// Makes a socket that listens on this address only. If the port is 0, the kernel chooses one, and the function fills
  /// it in.
  static StatusOr<Socket> listen(rendezvous::RailAddress& address);
  /// The TCP payload of a packet (MSS), in bytes, if a connection uses small packets. Every path carries such packets
  /// (IPv6 requires 1,280 bytes).
  static constexpr int kSmallPacketPayload = 1200;
  /// Starts to connect from `source` to `target`. Binds the socket to the interface `device` if the process may do so.
  /// `hasSmallPackets`: see kSmallPacketPayload.
  static StatusOr<Socket> connect(const topology::IpAddress& source, const std::string& device,
                                  const rendezvous::RailAddress& target, bool hasSmallPackets = false);

  bool isOpen() const { return descriptor_ >= 0; }
  int descriptor() const { return descriptor_; }
  void close();
  /// Closes the socket by a reset, which drops written bytes that have not arrived.
  void reset();

  /// Accepts the next connection that waits at this listener. Returns nullopt if this fails; errno has the reason.
  std::optional<Socket> accept() const;
  /// Returns 0 if the connection attempt has succeeded, else its errno.
  int connectError() const;
  /// Sets the options of a connected socket that carries frames: no delay and keepalive.
  void prepare() const;
  /// Selects cubic or reno if the system's congestion control is BBR. Call before connecting.
  void avoidBbr() const;
  /// Sets the not-sent low-water mark: the socket is not writable while the kernel holds more unsent bytes.
  void setNotSentLowat(int numBytes) const;
  /// Limits the unacknowledged bytes in the kernel, sent or not; 0 removes the limit, and the kernel decides. Does
  /// nothing on kernels that cannot remove such a limit (before Linux 5.15).
  void setSendBuffer(int numBytes) const;

  /// read() and write() transfer as many bytes as possible without blocking.
  Moved read(std::span<const iovec> parts) const;
  Moved write(std::span<const iovec> parts) const;
  /// Sets the receive low-water mark: the poller reports the socket readable only when this many bytes, or the end of
  /// the connection, have arrived.
  void setReceiveLowat(int numBytes) const;
  /// Returns how many written bytes the peer's kernel has not acknowledged.
  size_t unacknowledgedBytes() const;
  /// Returns the part of unacknowledgedBytes() that the kernel has not sent yet.
  size_t unsentBytes() const;
  TcpInfo tcpInfo() const;

 private:
  int descriptor_ = -1;
};

}  // namespace agspeed::comm::tcp
