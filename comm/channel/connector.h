// SPDX-License-Identifier: Apache-2.0
// Connector: one connect() in progress. It tries all addresses of a ticket at once and sends the hello to the first one
// that accepts; the welcome makes the channel. One thread at a time; poller and association outlive it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/channel/association.h"
#include "comm/channel/control_line.h"
#include "comm/channel/hello.h"
#include "comm/io/watch.h"

namespace agspeed::comm {

class Connector {
 public:
  Connector(Poller& poller, Association& association, Ticket ticket, Hello hello, const JobKey& key,
            ControlLine::Owner& owner, Clock::time_point deadline);
  ~Connector();

  /// Checks the progress. nullopt: not finished yet. Ok: takeLine() and channel() are valid, and the association knows
  /// the peer. Unavailable: no process answers at the addresses, or not in time. Invalid argument: the listener refuses
  /// or does not prove the ticket's secret; the message has the reason.
  std::optional<Status> advance(Clock::time_point now);

  std::unique_ptr<ControlLine> takeLine() { return std::move(line_); }
  uint32_t channel() const { return hello_.channel; }
  Association& association() const { return association_; }

 private:
  struct Attempt {
    tcp::Socket socket;
    std::unique_ptr<Watch> watch;
    int error = 0;
    bool isDecided = false;
  };

  void start(const RailAddress& target);
  void decided(Attempt& attempt);
  std::optional<Status> readWelcome(ByteView bytes);
  /// "process 4242 at 10.0.0.5 port 40000, 10.1.0.5 port 40001".
  std::string listenerName() const;

  Poller& poller_;
  Association& association_;
  const Ticket ticket_;
  const Hello hello_;
  const JobKey& key_;
  ControlLine::Owner& owner_;
  const Clock::time_point deadline_;
  std::vector<std::byte> sent_;
  std::vector<std::unique_ptr<Attempt>> attempts_;
  std::unique_ptr<ControlLine> line_;
};

}  // namespace agspeed::comm
