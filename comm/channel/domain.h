// SPDX-License-Identifier: Apache-2.0
// Domain (libfabric's term): all channels of a process and the interfaces they share. It accepts connections and drives
// transfers. No function blocks. Transfers progress inside test(), connect() and accept(), and on a thread of the
// domain while no caller drives. Every call serves all channels, because a small send is done when it is copied, and
// its caller does not test it again.
//
//   listen -> a ticket, handed to the other process -> connect there, accept here -> one channel, from there to here
//
// Threading: every function may be called from any thread; one lock. The domain owns channels, listeners and requests,
// which are valid until they are closed.
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

/// Names of the preferred interfaces (NetworkOptions::home); empty: all interfaces are alike.
using Home = std::vector<std::string>;

struct Listener {
  uint64_t id = 0;
  Home home;  ///< for frames back to the connectors
  Ticket::Secret secret{};
  std::deque<std::unique_ptr<Channel>> arrived;  ///< connected, and not accepted yet
};

class Domain final : private ControlLine::Owner {
 public:
  /// Listens on the interfaces that the settings select, in the settings' mode (NetworkOptions::fromSettings). Invalid
  /// argument: no interface is usable, or the settings are refused.
  static StatusOr<std::unique_ptr<Domain>> open();
  /// Gives copied messages to the kernel first, for at most a second per association.
  ~Domain();
  Domain(const Domain&) = delete;

  const std::vector<Interface>& interfaces() const { return interfaces_; }
  /// "authenticated over 127.0.0.1 (lo)".
  std::string describe() const;

  /// The traffic of all associations since open(), by interface.
  std::vector<InterfaceTraffic> traffic();

  Listener* listen(Ticket::Bytes ticket, Home home = {});
  /// Call it with the same bytes until it returns a channel or a failure; nullptr: not yet.
  StatusOr<Channel*> connect(Ticket::Bytes ticket, const Home& home = {});
  /// The next channel of the listener; nullptr: none has connected.
  Channel* accept(Listener& listener);

  // See Channel.
  Request* send(Channel& channel, std::span<std::byte> bytes, int tag);
  Request* receive(Channel& channel, std::span<const ReceiveTarget> targets);
  std::optional<Status> test(Request& request, int* sizes);

  void close(Channel& channel);
  /// Also closes the channels that have connected and were not accepted.
  void close(Listener& listener);

 private:
  /// The line of a closed channel. Its association stays in use until the peer has closed its end, too.
  struct Leaving {
    std::unique_ptr<ControlLine> line;
    Association* association;
  };
  using PeerKey = std::pair<uint64_t, uint32_t>;  ///< domain and association of a connector
  using Destination = std::pair<uint64_t, Home>;  ///< domain of a listener, and the preferred interfaces

  Domain(NetworkOptions options, std::string mode);
  void lineChanged() override { isLineChanged_ = true; }

  // The following functions require the lock.
  /// `first`: the association that the caller waits for; nullptr: none in particular.
  void drive(Association* first);
  void handleLines(Clock::time_point now);
  void welcome(HelloServer::Caller caller);
  StatusOr<std::unique_ptr<Association>> openAssociation(Association::Role role, uint32_t number, const Home& home);
  StatusOr<Association*> associationFor(const Hello& hello, const Home& home);
  StatusOr<Association*> associationTo(const Ticket& ticket, const Home& home);
  StatusOr<std::unique_ptr<Connector>> startConnector(Ticket::Bytes ticket, const Home& home);
  /// Ends unused associations that have nothing left to send.
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
    std::optional<Clock::time_point> since;  ///< when it became unused; nullopt: it is in use
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
  Clock::time_point drivenAt_{};  ///< when a caller last drove

  bool isStopping_ = false;
  std::condition_variable stopped_;
  std::thread thread_;
};

}  // namespace agspeed::comm
