// SPDX-License-Identifier: Apache-2.0
// Domain (libfabric's term): all channels of a process, and the network interfaces that they use. It accepts
// connections and drives transfers. No function except the destructor blocks. Transfers progress inside test(),
// connect() and accept(), and on a thread of the domain while no caller drives. A call of test() also drives other
// requests. This is necessary for small sends: such a send is complete as soon as its bytes are copied, so its caller
// does not test it again. But the copied bytes must still leave.
//
//   listen() here -> a ticket, passed to the other process -> connect() there, accept() here -> a channel to here
//
// Threading: any thread may call all functions; one lock serializes them. Ownership: the domain owns channels,
// listeners and requests. Channels and listeners are valid until they are closed, requests until their channel is
// closed.
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

namespace agspeed::comm::channel {

/// Names of the preferred interfaces (NetworkOptions::home). If it is empty, no interface is preferred.
using Home = std::vector<std::string>;

struct Listener {
  uint64_t id = 0;
  Home home;  ///< interfaces that frames to the connectors prefer
  Ticket::Secret secret{};
  std::deque<std::unique_ptr<Channel>> arrived;  ///< channels that have connected and are not accepted yet
};

class Domain final : private ControlLine::Owner {
 public:
  /// Creates a domain that listens on the interfaces that the settings select, and uses the mode of the settings
  /// (NetworkOptions::fromSettings). Invalid argument: the settings are invalid, or select no usable interface.
  /// Unavailable: an address cannot be used.
  static StatusOr<std::unique_ptr<Domain>> open();
  /// Closes all channels and listeners. Before that, waits for at most a second per association until the kernel has
  /// taken the copied messages.
  ~Domain();
  Domain(const Domain&) = delete;

  const std::vector<topology::Interface>& interfaces() const { return interfaces_; }
  /// Describes the domain for the log: "authenticated over 127.0.0.1 (lo)".
  std::string describe() const;

  /// Returns the traffic of all associations since open(), with one entry per element of interfaces().
  std::vector<InterfaceTraffic> traffic();

  /// Creates a listener, and writes its ticket into `ticket`. Another process passes this ticket to connect(). `home`:
  /// the preferred interfaces of frames to such processes.
  Listener* listen(Ticket::Bytes ticket, Home home = {});
  /// Connects to the listener that made the ticket. Returns: the channel to the listener; nullptr while the connection
  /// is being made. In that case call it again with the same bytes: the domain writes the number of the connect() into
  /// the ticket (Ticket::note).
  StatusOr<Channel*> connect(Ticket::Bytes ticket, const Home& home = {});
  /// Returns the next channel that has connected to the listener; nullptr: there is none yet.
  Channel* accept(Listener& listener);

  // These functions call the channel's functions of the same names; see Channel. test() also drives the transfers.
  ChannelRequest* send(Channel& channel, std::span<std::byte> bytes, int tag);
  ChannelRequest* receive(Channel& channel, std::span<const ReceiveTarget> targets);
  std::optional<Status> test(ChannelRequest& request, int* sizes);

  void close(Channel& channel);
  /// Closes the listener, and the channels that have connected to it and are not accepted.
  void close(Listener& listener);

 private:
  /// The control line of a closed channel on which this process received. The association stays in use until the peer
  /// has closed its end of the line, too.
  struct Leaving {
    std::unique_ptr<ControlLine> line;
    Association* association;
  };
  using PeerKey = std::pair<uint64_t, uint32_t>;  ///< domain and association number of a connector
  using Destination = std::pair<uint64_t, Home>;  ///< domain of a listener, and the preferred interfaces

  Domain(network::NetworkOptions options, std::string mode);
  void lineChanged() override { isLineChanged_ = true; }

  // The functions from drive() to leave() require that the caller holds the lock.
  /// Drives the transfers of this domain without blocking. If `first` is null, this function drives all associations.
  /// Otherwise the caller waits for `first`. Every call then drives `first`. Every eighth call, and a call at which
  /// timers are due, drives the other associations, too.
  void drive(Association* first);
  /// Reads all control lines: hellos, farewells, and the ends of lines.
  void handleLines(io::Clock::time_point now);
  /// Answers a hello. If it is accepted, adds a channel to its listener.
  void welcome(HelloServer::Caller caller);
  StatusOr<std::unique_ptr<Association>> openAssociation(Association::Role role, uint32_t number, const Home& home);
  /// Returns the association that the sender of the hello uses, and makes it if it is new.
  StatusOr<Association*> associationFor(const Hello& hello, const Home& home);
  /// Returns an association to the listener of the ticket, and makes one if none is in use.
  StatusOr<Association*> associationTo(const Ticket& ticket, const Home& home);
  StatusOr<std::unique_ptr<Connector>> startConnector(Ticket ticket, const Home& home);
  /// Destroys unused associations. An association of a connector is destroyed when its bytes have left, but at the
  /// latest after a second. An association of a listener is destroyed after three seconds.
  void dropUnused(io::Clock::time_point now);
  Introduction introduce(const Association& association) const;
  /// Takes ownership of a channel until it is closed.
  Channel* adopt(std::unique_ptr<Channel> channel);
  /// Closes a channel. A channel on which this process received leaves its control line in leaving_.
  void leave(std::unique_ptr<Channel> channel);

  void runThread();

  const uint64_t id_;
  const std::string mode_;
  network::NetworkOptions options_;
  const std::string host_;
  std::vector<topology::Interface> interfaces_;

  std::mutex mutex_;
  io::Poller poller_;
  std::unique_ptr<HelloServer> server_;
  struct OwnedAssociation {
    std::unique_ptr<Association> association;
    std::optional<io::Clock::time_point> unusedSince;  ///< nullopt: the association is in use
  };
  std::vector<OwnedAssociation> associations_;
  std::vector<InterfaceTraffic> endedTraffic_;  ///< traffic of associations that were destroyed
  std::map<Destination, Association*> outgoing_;
  std::map<PeerKey, Association*> incoming_;
  std::map<uint64_t, std::unique_ptr<Listener>> listeners_;
  std::map<const Channel*, std::unique_ptr<Channel>> channels_;
  std::map<uint64_t, std::unique_ptr<Connector>> connectors_;  ///< by the number that connect() notes in the ticket
  std::vector<Leaving> leaving_;
  uint64_t numListeners_ = 0, numConnectors_ = 0, numDrives_ = 0;
  uint32_t numAssociations_ = 0;
  bool isLineChanged_ = false;
  io::Clock::time_point nextTimers_{};
  io::Clock::time_point drivenAt_{};  ///< when a caller last drove the transfers

  bool isStopping_ = false;
  std::condition_variable stopped_;
  std::thread thread_;
};

}  // namespace agspeed::comm::channel
