// SPDX-License-Identifier: Apache-2.0
// ControlLine: a TCP connection beside the rails that carries short records in order. The two ends of a channel connect
// over it, and it shows when the other end has closed. It carries no payload, so one link is enough; if that link is
// cut, the line stays open. A record is a length in 4 bytes, then the bytes.
//
// One thread at a time; the poller outlives it.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "comm/io/poller.h"
#include "comm/security/keys.h"
#include "comm/transport/tcp/socket.h"

namespace agspeed::comm {

class ControlLine final : private Poller::Handler {
 public:
  class Owner {
   public:
    /// A record may have arrived, or the line has ended. Not called from within the line's own functions.
    virtual void lineChanged() = 0;

   protected:
    ~Owner() = default;
  };

  /// `socket` is connected. Records of more than `maxBytes` end the line.
  ControlLine(Poller& poller, tcp::Socket socket, size_t maxBytes, Owner& owner);
  ~ControlLine();
  ControlLine(const ControlLine&) = delete;

  /// Whether further records may arrive.
  bool isOpen() const { return isOpen_; }
  /// Sends a record. The line ends if the kernel does not accept the record at once; it normally does, because records
  /// are rare.
  void send(ByteView record);
  /// Closes the sending direction. Records that were sent before still arrive.
  void finish() const;
  /// The next record that has arrived completely.
  std::optional<std::vector<std::byte>> receive();
  /// The bytes of the next record that have arrived, without its length.
  ByteView begun() const;

 private:
  void ready(uint32_t events) override;
  void end();

  Poller& poller_;
  tcp::Socket socket_;
  const size_t maxBytes_;
  Owner& owner_;
  const Poller::Id id_;
  bool isOpen_ = true;
  std::vector<std::byte> received_;
};

}  // namespace agspeed::comm
