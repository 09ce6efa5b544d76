// SPDX-License-Identifier: Apache-2.0
// Connector: one connect() in progress. It tries all addresses of a ticket at once and sends the hello to the first
// address that accepts. The channel can be made when a welcome arrives that accepts the hello and proves the ticket's
// secret. Only one thread at a time may use a connector. The poller, the association, the job key and the owner outlive
// the connector.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/channel/association.h"
#include "comm/channel/control_line.h"
#include "comm/channel/hello.h"
#include "comm/io/watch.h"

namespace agspeed::comm::channel {

class Connector {
 public:
  /// Starts to connect to all addresses of the ticket. Calls owner.lineChanged() when advance() should be called.
  Connector(io::Poller& poller, Association& association, Ticket ticket, Hello hello, const security::JobKey& key,
            ControlLine::Owner& owner, io::Clock::time_point deadline);
  ~Connector();

  /// Continues the connect() with everything that has arrived, without waiting. Returns: nullopt while the connect() is
  /// in progress. Ok: takeLine() and channel() are valid, and the association knows the peer. Unavailable: no process
  /// answered in time, or the process closed the connection. Invalid argument: the listener refused the hello, or did
  /// not prove the ticket's secret; the message has the reason.
  std::optional<Status> advance(io::Clock::time_point now);

  std::unique_ptr<ControlLine> takeLine() { return std::move(line_); }
  const Ticket& ticket() const { return ticket_; }
  uint32_t channel() const { return hello_.channel; }
  Association& association() const { return association_; }

 private:
  struct Attempt {
    tcp::Socket socket;
    std::unique_ptr<io::Watch> watch;
    int error = 0;           ///< errno of a failed attempt
    bool isDecided = false;  ///< the attempt has succeeded or failed
  };

  void start(const rendezvous::RailAddress& target);
  /// Makes the control line and sends the hello, if the attempt has succeeded.
  void useIfConnected(Attempt& attempt);
  std::optional<Status> readWelcome(ByteView bytes);
  /// Returns the name of the listener for errors: "process 4242 at 10.0.0.5 port 40000, 10.1.0.5 port 40001".
  std::string listenerName() const;

  io::Poller& poller_;
  Association& association_;
  const Ticket ticket_;
  const Hello hello_;
  const security::JobKey& key_;
  ControlLine::Owner& owner_;
  const io::Clock::time_point deadline_;
  std::vector<std::byte> encodedHello_;
  std::vector<std::unique_ptr<Attempt>> attempts_;
  std::unique_ptr<ControlLine> line_;
};

}  // namespace agspeed::comm::channel
