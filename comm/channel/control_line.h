// SPDX-License-Identifier: Apache-2.0
// ControlLine: short records in order over a TCP connection, beside the rails: how two ends of a channel meet, and how
// one learns that the other has closed. It carries no payload, so one link is enough; a link that is cut does not end
// it. A record is a length in 4 bytes and the bytes.
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
  /// Is told that a record has come or that the line has ended; not from within the line's own functions.
  class Owner {
   public:
    virtual void lineChanged() = 0;

   protected:
    ~Owner() = default;
  };

  /// `socket` is connected. Records of more than `maxBytes` end the line.
  ControlLine(Poller& poller, tcp::Socket socket, size_t maxBytes, Owner& owner);
  ~ControlLine();
  ControlLine(const ControlLine&) = delete;

  /// Whether the peer may still say something, or has.
  bool isOpen() const { return isOpen_; }
  /// A kernel that does not take it at once ends the line: it is the first in a while.
  void send(ByteView record);
  /// Nothing more will be sent; what was still arrives.
  void finish() const;
  /// The next that has come whole.
  std::optional<std::vector<std::byte>> receive();
  /// What has come of the next record, its length aside.
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
