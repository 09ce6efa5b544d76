// SPDX-License-Identifier: Apache-2.0
// ControlLine: a TCP connection beside the rails that carries short records in order. It carries the hello and the
// welcome when a channel connects, and the farewell when an end closes. A line uses one network link. If that link is
// cut, the line stays open, but its records do not arrive. A record is sent as its length in 4 bytes, followed by its
// bytes.
//
// Only one thread at a time may use a line. The poller and the owner outlive it.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "comm/io/poller.h"
#include "comm/security/keys.h"
#include "comm/transport/tcp/socket.h"

namespace agspeed::comm::channel {

class ControlLine final : private io::Poller::Handler {
 public:
  class Owner {
   public:
    /// Notifies the owner that a line may have been established, received a record or been closed. The poller calls
    /// this function. The other functions of a line never call it.
    virtual void lineChanged() = 0;

   protected:
    ~Owner() = default;
  };

  /// Makes a line of a connected socket. The line is closed if the peer announces a record of more than `maxBytes`.
  ControlLine(io::Poller& poller, tcp::Socket socket, size_t maxBytes, Owner& owner);
  ~ControlLine();
  ControlLine(const ControlLine&) = delete;

  /// Returns whether the line is open, so that further records may arrive.
  bool isOpen() const { return isOpen_; }
  /// Sends a record, unless the line is closed. Closes the line if the kernel does not accept the whole record at once.
  /// The kernel normally accepts it, because records are rare.
  void send(ByteView record);
  /// Closes the sending direction. Records that were sent before still arrive.
  void finish() const;
  /// Removes and returns the next record that has arrived completely; nullopt: there is none.
  std::optional<std::vector<std::byte>> receive();
  /// Returns the bytes of the next record that have arrived so far, without the record's length. Removes nothing.
  ByteView begun() const;

 private:
  void ready(uint32_t events) override;
  void end();

  io::Poller& poller_;
  tcp::Socket socket_;
  const size_t maxBytes_;
  Owner& owner_;
  const io::Poller::Id id_;
  bool isOpen_ = true;
  std::vector<std::byte> received_;
};

}  // namespace agspeed::comm::channel
