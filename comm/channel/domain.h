// SPDX-License-Identifier: Apache-2.0
// Domain: all channels of a process, in libfabric's word: the interfaces they share, those who may connect, and who
// moves the bytes. Nothing here blocks: what is under way goes on while somebody calls test(), connect() or accept(),
// and by a thread of the domain while nobody does. Whoever drives serves all channels: small sends are done when they
// are copied, and nobody tests them again.
//
//   listen -> a ticket, handed to the other process -> connect there, accept here -> one channel, from there to here
//
// Threading: every function may be called from any thread; one lock. Channels, listeners and requests are the domain's,
// valid until they are closed.
#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/channel/association.h"
#include "comm/channel/channel.h"
#include "comm/channel/connector.h"
#include "comm/channel/hello_server.h"
#include "comm/channel/ticket.h"

namespace agspeed::comm {

/// Names of the interfaces that carry first; empty: all alike.
using Home = std::vector<std::string>;

struct Listener {
  uint64_t id = 0;
  Home home;  ///< of what goes back to those who connect
  Ticket::Secret secret{};
  std::deque<std::unique_ptr<Channel>> arrived;  ///< made, and not yet accepted
};

class Domain final : private ControlLine::Owner {
 public:
  /// Listens on the interfaces that settings select, in their mode (NetworkOptions::fromSettings). Invalid argument: no
  /// interface is usable, or settings that must not be used.
  static StatusOr<std::unique_ptr<Domain>> open();
  /// Hands what is copied to the kernel, for at most a second per association.
  ~Domain();
  Domain(const Domain&) = delete;

  const std::vector<Interface>& interfaces() const { return interfaces_; }
  /// "authenticated over 127.0.0.1 (lo)".
  std::string describe() const;

  /// By interface, of all associations since open().
  std::vector<InterfaceTraffic> traffic();

  Listener* listen(Ticket::Bytes ticket, Home home = {});
  /// To be called with the same bytes until it gives a channel or a failure; nullptr: not yet.
  StatusOr<Channel*> connect(Ticket::Bytes ticket, const Home& home = {});
  /// nullptr: nobody has connected.
  Channel* accept(Listener& listener);

  // As of Channel.
  Request* send(Channel& channel, std::span<std::byte> bytes, int tag);
  Request* receive(Channel& channel, std::span<const ReceiveTarget> targets);
  std::optional<Status> test(Request& request, int* sizes);

  void close(Channel& channel);
  /// Who connected and was not accepted is closed, too.
  void close(Listener& listener);

 private:
  /// A closed channel's line: its association serves the peer until that has closed, too.
  struct Leaving {
    std::unique_ptr<ControlLine> line;
    Association* association;
  };
  using PeerKey = std::pair<uint64_t, uint32_t>;  ///< domain and association of a connector
  using Destination = std::pair<uint64_t, Home>;  ///< domain of a listener, and over which interfaces first

  Domain(NetworkOptions options, std::string mode);
  void lineChanged() override { isLineChanged_ = true; }

  // With the lock held:
  /// `first` is the association that the caller waits for; nullptr: none in particular.
  void drive(Association* first);
  void handleLines(Clock::time_point now);
  void welcome(HelloServer::Caller caller);
  StatusOr<std::unique_ptr<Association>> openAssociation(Association::Role role, uint32_t number, const Home& home);
  StatusOr<Association*> associationFor(const Hello& hello, const Home& home);
  StatusOr<Association*> associationTo(const Ticket& ticket, const Home& home);
  StatusOr<std::unique_ptr<Connector>> startConnector(Ticket::Bytes ticket, const Home& home);
  /// Ends associations that nobody uses and that have nothing left to send.
  void dropUnused(Clock::time_point now);
  Introduction introduce(const Association& association) const;
  Channel* adopt(std::unique_ptr<Channel> channel);
  void leave(std::unique_ptr<Channel> channel);

  void runThread();

  const uint64_t id_;
  const std::string mode_;
  NetworkOptions options_;
  const std::string host_;
  std::vector<Interface> interfaces_;

  std::mutex mutex_;
  Poller poller_;
  std::unique_ptr<HelloServer> server_;
  struct Unused {
    std::unique_ptr<Association> association;
    std::optional<Clock::time_point> since;  ///< nobody has used it
  };
  std::vector<Unused> associations_;
  std::vector<InterfaceTraffic> endedTraffic_;  ///< of associations that have ended
  std::map<Destination, Association*> outgoing_;
  std::map<PeerKey, Association*> incoming_;
  std::map<uint64_t, std::unique_ptr<Listener>> listeners_;
  std::map<const Channel*, std::unique_ptr<Channel>> channels_;
  std::map<uint64_t, std::unique_ptr<Connector>> connectors_;  ///< by the note in their ticket
  std::vector<Leaving> leaving_;
  uint64_t numListeners_ = 0, numConnectors_ = 0, numDrives_ = 0;
  uint32_t numAssociations_ = 0;
  bool isLineChanged_ = false;
  Clock::time_point nextTimers_{};
  Clock::time_point drivenAt_{};  ///< when a caller drove last

  bool isStopping_ = false;
  std::condition_variable stopped_;
  std::thread thread_;
};

}  // namespace agspeed::comm
