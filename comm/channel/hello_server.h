// SPDX-License-Identifier: Apache-2.0
// HelloServer: where a domain listens for hellos, on each of its interfaces, and who has connected there and said
// nothing yet. Those are held in few places for a short time, and nothing is allocated by their word: a hello of at
// most kMaxHelloBytes is read, and whoever begins with anything else is closed at once. One thread at a time.
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
  /// Somebody who has said hello, unproven.
  struct Caller {
    std::unique_ptr<ControlLine> line;
    std::vector<std::byte> hello;
  };

  /// Unavailable: one of the addresses cannot be listened at. Poller and owner outlive it.
  static StatusOr<std::unique_ptr<HelloServer>> open(Poller& poller, const std::vector<Interface>& interfaces,
                                                     ControlLine::Owner& owner);
  ~HelloServer();

  const std::vector<RailAddress>& addresses() const { return addresses_; }
  /// Those whose hello has come since the last call; drops who is late or speaks otherwise.
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
