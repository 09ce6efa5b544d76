// SPDX-License-Identifier: Apache-2.0
// Association (SCTP's term): all traffic of the channels from one process, the connector, to another process, the
// listener. It owns the rails, keys and messages of this traffic. Channels in the opposite direction use another
// association. Internally, the two processes form a group of two ranks, in which the connector is rank 0. They use no
// common store: each process gets the record of the other process from the hello or the welcome.
//
// Only one thread at a time may use an association. The poller outlives it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/channel/hello.h"
#include "comm/io/poller.h"
#include "comm/network/network_messenger.h"
#include "comm/network/network_options.h"

namespace agspeed::comm::channel {

/// Traffic counters of one interface: the sums over its rails.
struct InterfaceTraffic {
  uint64_t numBytesSent = 0;  ///< payload bytes, including retransmissions
  uint64_t numBytesReceived = 0;
  uint64_t numLosses = 0;  ///< connections that were lost while a channel used them
};

class Association final : private io::Poller::Handler {
 public:
  enum class Role : int { kConnector = 0, kListener = 1 };

  /// Creates one end of an association, whose rails listen when this function returns. The function sets `rank`, `size`
  /// and `epoch` of `options` itself. `number` is the same at both ends: the connector chooses it, and the listener
  /// gets it from the hello.
  static StatusOr<std::unique_ptr<Association>> open(io::Poller& poller, network::NetworkOptions options, Role role,
                                                     uint32_t number);
  ~Association();
  Association(const Association&) = delete;

  /// Returns the record of this end, which the peer passes to introduce().
  const std::string& record() const { return messenger_->record(); }
  /// Sets the peer: its record, with which the rails connect to it, and its name for logs and errors.
  void introduce(const Introduction& peer);

  Role role() const { return role_; }
  uint32_t number() const { return number_; }
  int peer() const { return 1 - static_cast<int>(role_); }
  /// Adds a user of the association: a channel, a connector, or the control line of a closed channel. The domain does
  /// not drop an association that has users. An association without users logs nothing about its peer, because the peer
  /// may have ended.
  void addUser() {
    ++numUsers_;
    messenger_->names().setLogged(true);
  }
  void removeUser() { messenger_->names().setLogged(--numUsers_ > 0); }
  bool isUsed() const { return numUsers_ > 0; }
  /// Records a channel that both ends have open. Lost connections are counted only while such a channel exists, because
  /// a process that has closed its channels may end at any time.
  void addOpenChannel() { ++numOpen_; }
  void removeOpenChannel() { --numOpen_; }
  /// Counts the lost connections that the previous call has found, if a channel is still open. Counting one call late
  /// is necessary: a peer that ends sends a farewell first, but its connections may end before this process has read
  /// the farewell. Call the function regularly, each time after the control lines were read.
  void countLosses();
  /// Returns a channel number that this association has not used yet.
  uint32_t nextChannel() { return ++numChannels_; }

  /// Sends and receives everything that is possible without waiting.
  void progress() { (void)messenger_->progress({}); }
  // These functions forward to the messenger; see Messenger. The control frames of receive() leave only with the next
  // progress(). If a caller starts several receives and then calls test(), their control frames leave together.
  void send(messaging::Transfer& transfer) { messenger_->send(transfer); }
  void receive(messaging::Transfer& transfer) {
    messenger_->beginTurn();
    messenger_->receive(transfer);
  }
  void cancel(messaging::Transfer& transfer, const Status& reason) { messenger_->cancel(transfer, reason); }
  void dropCommunicator(uint32_t communicator) { messenger_->dropCommunicator(communicator); }
  bool hasUnsent() const { return messenger_->hasUnsent(); }
  /// Adds the counters of each rail to the entry of `traffic` whose interface has the address of the rail. `traffic`
  /// has one entry per interface.
  void addTraffic(std::span<const topology::Interface> interfaces, std::span<InterfaceTraffic> traffic) const;
  /// Returns the name of the peer for messages, such as "process 4242 on node1".
  std::string peerName() const { return messenger_->names().of(peer()); }

 private:
  Association(io::Poller& poller, Role role, uint32_t number) : poller_(poller), role_(role), number_(number) {}
  void ready(uint32_t) override { progress(); }

  io::Poller& poller_;
  const Role role_;
  const uint32_t number_;
  std::unique_ptr<network::NetworkMessenger> messenger_;
  io::Poller::Id id_ = 0;
  int numUsers_ = 0;
  uint32_t numChannels_ = 0;
  int numOpen_ = 0;
  struct Losses {
    uint64_t counted = 0;     ///< losses of the rail while a channel was open
    uint64_t numHandled = 0;  ///< number of the rail's losses that were counted or ignored
    uint64_t numFound = 0;    ///< number of the rail's losses at the last countLosses()
  };
  std::vector<Losses> losses_;  ///< one element per rail
};

}  // namespace agspeed::comm::channel
