// SPDX-License-Identifier: Apache-2.0
// Association: all that passes between this process and another one, in SCTP's word: rails, keys and messages of the
// two, shared by all channels that one of them has opened to the other. Below it the two are ranks of a group of two:
// rank 0 is who connected. Instead of a store, each has the other's record from the hello.
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

/// What all rails of an interface have carried.
struct InterfaceTraffic {
  uint64_t numBytesSent = 0;  ///< payload, what was sent again included
  uint64_t numBytesReceived = 0;
  uint64_t numLosses = 0;  ///< of connections that were up
};

class Association final : private Poller::Handler {
 public:
  enum class Role : int { kConnector = 0, kListener = 1 };

  /// Listens on the rails of `options`; rank, size and epoch there are filled in. `number` is the connector's.
  static StatusOr<std::unique_ptr<Association>> open(Poller& poller, NetworkOptions options, Role role,
                                                     uint32_t number);
  ~Association();
  Association(const Association&) = delete;

  /// For the peer.
  const std::string& record() const { return record_; }
  /// Who it is; messages go from now on.
  void introduce(const Introduction& peer);

  Role role() const { return role_; }
  uint32_t number() const { return number_; }
  int peer() const { return 1 - static_cast<int>(role_); }
  /// Another channel of this process uses it, or one no longer does.
  void addUser() {
    ++numUsers_;
    wasUsed_ = true;
  }
  void removeUser() { --numUsers_; }
  bool isUsed() const { return numUsers_ > 0; }
  /// A number that no other channel of it has.
  uint32_t nextChannel() { return ++numChannels_; }

  /// Moves what can be moved without waiting.
  void progress();
  // As of Messenger. What the messenger logs meanwhile names processes.
  void send(Transfer& transfer);
  void receive(Transfer& transfer);
  void cancel(Transfer& transfer, const Status& reason);
  void dropCommunicator(uint32_t communicator) { messenger_->dropCommunicator(communicator); }
  bool hasUnsent() const { return messenger_->hasUnsent(); }
  /// What has passed so far is added to that of its interface.
  void addTraffic(std::span<const Interface> interfaces, std::span<InterfaceTraffic> traffic) const;
  /// A failure of the messenger in terms of processes and hosts.
  Status describe(const Status& failure) const;
  /// "process 4242 on node1".
  std::string peerName() const;

 private:
  Association(Poller& poller, Role role, uint32_t number) : poller_(poller), role_(role), number_(number) {}
  class Names;
  void ready(uint32_t) override { progress(); }
  /// A sentence about the two ranks in terms of processes and hosts.
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
