// SPDX-License-Identifier: Apache-2.0
// Association (SCTP's term): the rails, keys and messages between this process and another one. All channels that one
// of the two has opened to the other share it. Inside, the two processes are the ranks of a group of two; the connector
// is rank 0. Instead of reading a store, each end gets the other's record from the hello or the welcome.
//
// One thread at a time; the poller outlives it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "comm/channel/hello.h"
#include "comm/io/poller.h"
#include "comm/network/network_messenger.h"
#include "comm/network/network_options.h"
#include "comm/rendezvous/store.h"

namespace agspeed::comm {

/// The traffic of all rails of an interface.
struct InterfaceTraffic {
  uint64_t numBytesSent = 0;  ///< payload, including retransmissions
  uint64_t numBytesReceived = 0;
  uint64_t numLosses = 0;  ///< connections that were up and were lost
};

class Association final : private Poller::Handler {
 public:
  enum class Role : int { kConnector = 0, kListener = 1 };

  /// Listens on the rails of `options`, whose rank, size and epoch this function fills in. The connector chooses
  /// `number`.
  static StatusOr<std::unique_ptr<Association>> open(Poller& poller, NetworkOptions options, Role role,
                                                     uint32_t number);
  ~Association();
  Association(const Association&) = delete;

  /// This end's record, to send to the peer.
  const std::string& record() const { return record_; }
  /// Sets the peer. Messages can be sent from now on.
  void introduce(const Introduction& peer);

  Role role() const { return role_; }
  uint32_t number() const { return number_; }
  int peer() const { return 1 - static_cast<int>(role_); }
  /// Counts the channels and connectors of this process that use the association.
  void addUser() {
    ++numUsers_;
    wasUsed_ = true;
  }
  void removeUser() { --numUsers_; }
  bool isUsed() const { return numUsers_ > 0; }
  /// A number that no other channel of the association has.
  uint32_t nextChannel() { return ++numChannels_; }

  /// Moves bytes without waiting.
  void progress();
  // See Messenger. Log lines of these calls name processes instead of ranks.
  void send(Transfer& transfer);
  void receive(Transfer& transfer);
  void cancel(Transfer& transfer, const Status& reason);
  void dropCommunicator(uint32_t communicator) { messenger_->dropCommunicator(communicator); }
  bool hasUnsent() const { return messenger_->hasUnsent(); }
  /// Adds the traffic of each rail to the total of the rail's interface.
  void addTraffic(std::span<const Interface> interfaces, std::span<InterfaceTraffic> traffic) const;
  /// Rewrites a failure of the messenger in terms of processes and hosts.
  Status describe(const Status& failure) const;
  /// "process 4242 on node1".
  std::string peerName() const;

 private:
  Association(Poller& poller, Role role, uint32_t number) : poller_(poller), role_(role), number_(number) {}
  class Names;
  void ready(uint32_t) override { progress(); }
  /// Rewrites a sentence about the two ranks in terms of processes and hosts.
  std::string named(std::string text) const;

  Poller& poller_;
  const Role role_;
  const uint32_t number_;
  MemoryStore store_;
  std::unique_ptr<NetworkMessenger> messenger_;
  Poller::Id id_ = 0;
  std::string record_;
  std::string peerName_;
  int numUsers_ = 0;
  bool wasUsed_ = false;
  uint32_t numChannels_ = 0;
};

}  // namespace agspeed::comm
