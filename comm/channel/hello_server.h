// SPDX-License-Identifier: Apache-2.0
// HelloServer: listens for hellos on each interface of a domain, and holds the connections whose hello has not arrived
// yet. PendingConnections bounds their cost. A connection is closed if the bytes on it cannot be the beginning of a
// hello. Only one thread at a time may use it.
#pragma once

#include <memory>
#include <vector>

#include "comm/channel/control_line.h"
#include "comm/channel/hello.h"
#include "comm/io/pausable_listener.h"
#include "comm/rendezvous/pending_connections.h"
#include "comm/topology/interfaces.h"

namespace agspeed::comm::channel {

class HelloServer {
 public:
  /// A connection whose hello has arrived and is not authenticated yet.
  struct Caller {
    std::unique_ptr<ControlLine> line;
    std::vector<std::byte> hello;
  };

  /// Creates a server that listens at the address of each interface. Unavailable: one of the addresses cannot be used.
  /// The poller and the owner outlive the server.
  static StatusOr<std::unique_ptr<HelloServer>> open(io::Poller& poller,
                                                     const std::vector<topology::Interface>& interfaces,
                                                     ControlLine::Owner& owner);
  ~HelloServer();

  const std::vector<rendezvous::RailAddress>& addresses() const { return addresses_; }
  /// Removes and returns the connections whose hello has arrived. Closes connections whose hello is late, and
  /// connections whose first bytes cannot begin a hello. Call this function every PendingConnections::kCheckInterval
  /// while hellos are awaited.
  std::vector<Caller> takeCallers(io::Clock::time_point now);
  bool isAwaitingHellos() const { return !pending_.isEmpty(); }

 private:
  struct ListeningSocket;

  HelloServer(io::Poller& poller, ControlLine::Owner& owner);
  void accept(ListeningSocket& listening);

  io::Poller& poller_;
  ControlLine::Owner& owner_;
  std::vector<rendezvous::RailAddress> addresses_;
  std::vector<std::unique_ptr<ListeningSocket>> sockets_;
  rendezvous::PendingConnections<ControlLine> pending_;  ///< connections without a complete hello
};

}  // namespace agspeed::comm::channel
