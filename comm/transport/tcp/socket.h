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

/// What a read or write moved. isOpen is false when the connection is of no use any more.
struct Moved {
  size_t numBytes = 0;
  bool isOpen = true;
};

/// The kernel's view of a connection.
struct TcpInfo {
  uint64_t bytesAcked = 0;
  uint32_t packetsInFlight = 0;
  std::chrono::milliseconds sinceLastAck{0};
  double roundTripSeconds = 0;     ///< queues included
  double minRoundTripSeconds = 0;  ///< as good as without them
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

  /// Listens on this address only; port 0 lets the kernel choose. Fills in the port.
  static StatusOr<Socket> listen(RailAddress& address);
  /// What packets carry of a connection with small ones: every path takes that (IPv6 asks for packets of 1,280 bytes).
  static constexpr int kSmallPacketPayload = 1200;
  /// Starts to connect from `source`, and through `device` where the process may bind to one.
  static StatusOr<Socket> connect(const IpAddress& source, const std::string& device, const RailAddress& target,
                                  bool hasSmallPackets = false);

  bool isOpen() const { return descriptor_ >= 0; }
  int descriptor() const { return descriptor_; }
  void close();
  /// Closes without waiting for what was written to arrive.
  void reset();

  /// The next connection waiting at a listener.
  std::optional<Socket> accept() const;
  /// 0 when a connection attempt has succeeded, else its errno.
  int connectError() const;
  /// Sets up a connected socket for frames.
  void prepare() const;
  /// Takes other congestion control where the system's is BBR. Before connecting.
  void avoidBbr() const;
  /// Bytes that may wait in the kernel beyond those in flight before the socket counts as full.
  void setNotSentLowat(int numBytes) const;
  /// Bytes that the kernel takes, sent or not, until some are acknowledged; 0: as many as it sees fit. Nothing changes
  /// where the kernel could not lift the limit again (before Linux 5.15).
  void setSendBuffer(int numBytes) const;

  Moved read(std::span<const iovec> parts) const;
  Moved write(std::span<const iovec> parts) const;
  /// The poller says that there is something to read when there is so much, or the end.
  void setReceiveLowat(int numBytes) const;
  /// Bytes written that the peer's kernel has not acknowledged.
  size_t unacknowledgedBytes() const;
  /// Those of them that have not been sent yet.
  size_t unsentBytes() const;
  TcpInfo tcpInfo() const;

 private:
  int descriptor_ = -1;
};

}  // namespace agspeed::comm::tcp
