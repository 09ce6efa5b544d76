// SPDX-License-Identifier: Apache-2.0
// HelloServer: listens for hellos on each interface of a domain, and holds the connections that have not sent one yet.
// Few connections are held, for a short time, and none can make this process allocate much: a hello has at most
// kMaxHelloBytes, and a connection whose bytes cannot begin a hello is closed. One thread at a time.
#pragma once

#include <memory>
#include <vector>

#include "comm/channel/control_line.h"
#include "comm/channel/hello.h"
#include "comm/io/pausable_listener.h"
#include "comm/topology/interfaces.h"

namespace agspeed::comm {

class HelloServer {
 public:
  /// A connection whose hello has arrived and is not authenticated yet.
  struct Caller {
    std::unique_ptr<ControlLine> line;
    std::vector<std::byte> hello;
  };

  /// Unavailable: the process cannot listen at one of the addresses. Poller and owner outlive the server.
  static StatusOr<std::unique_ptr<HelloServer>> open(Poller& poller, const std::vector<Interface>& interfaces,
                                                     ControlLine::Owner& owner);
  ~HelloServer();

  const std::vector<RailAddress>& addresses() const { return addresses_; }
  /// The connections whose hello has arrived since the last call. Closes connections that are too late or begin with
  /// other bytes.
  std::vector<Caller> takeCallers(Clock::time_point now);

 private:
  struct Entrance;
  struct Visitor {
    std::unique_ptr<ControlLine> line;
    Clock::time_point deadline;
  };

  HelloServer(Poller& poller, ControlLine::Owner& owner);
  void accept(Entrance& entrance);

  Poller& poller_;
  ControlLine::Owner& owner_;
  std::vector<RailAddress> addresses_;
  std::vector<std::unique_ptr<Entrance>> entrances_;
  std::vector<Visitor> visitors_;  ///< oldest first
};

}  // namespace agspeed::comm
