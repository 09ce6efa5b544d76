// SPDX-License-Identifier: Apache-2.0
// NetworkMessenger: exchanges messages between processes over all network interfaces of the host, and through shared
// memory between processes of one host. It combines three layers: rails as one transport (multirail_transport.h), the
// choice between this transport and shared memory (local_first.h), and messages (transport_messenger.h). Ranks find
// each other through a store, or their owners introduce them.
//
// Threading: see messenger.h. Only the look-ups of the directory have a thread of their own. The store outlives the
// messenger.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/io/fd_limit.h"
#include "comm/io/poller.h"
#include "comm/messaging/transport_messenger.h"
#include "comm/network/local_first.h"
#include "comm/network/network_options.h"
#include "comm/rendezvous/directory.h"
#include "comm/topology/link_monitor.h"
#include "comm/transport/multirail/multirail_transport.h"

namespace agspeed::comm::network {

class NetworkMessenger final : public messaging::Messenger, private io::Poller::Handler {
 public:
  /// Creates a messenger that listens on its rails, and publishes this rank in the store. The messenger connects to a
  /// peer only when there is something to send to it or to receive from it.
  static StatusOr<std::unique_ptr<NetworkMessenger>> create(rendezvous::Store& store, const NetworkOptions& options);
  /// Creates a messenger without a store. Its owner passes record() to each peer, and the peer's record to introduce().
  static StatusOr<std::unique_ptr<NetworkMessenger>> create(const NetworkOptions& options);
  ~NetworkMessenger() override;

  int rank() const override { return messenger_->rank(); }
  int size() const override { return messenger_->size(); }
  void send(messaging::Transfer& transfer) override { messenger_->send(transfer); }
  void receive(messaging::Transfer& transfer) override { messenger_->receive(transfer); }
  void cancel(messaging::Transfer& transfer, const Status& reason) override { messenger_->cancel(transfer, reason); }
  void dropCommunicator(uint32_t communicator) override { messenger_->dropCommunicator(communicator); }
  bool probe(int peer, const wire::MessageId& id) const override { return messenger_->probe(peer, id); }
  uint64_t numBytesMoved(const messaging::Transfer& transfer) const override {
    return messenger_->numBytesMoved(transfer);
  }
  bool progress(io::Clock::time_point until) override { return messenger_->progress(until); }
  bool hasUnsent() const override { return messenger_->hasUnsent(); }
  /// Delays the control frames of the following receive() calls until the end of the next progress(), so that several
  /// frames leave in one system call.
  void beginTurn() { multirail_->beginTurn(); }
  double bytesPerSecond() const override;
  bool isRemote(int peer) const override { return !sharesMemoryWith(peer); }
  double roundTripSeconds(int peer) const override;
  uint32_t host() const override;
  void wake() override { poller_.wake(); }
  /// Returns a descriptor that is readable while a socket of the messenger is ready or wake() was called. Timers,
  /// shared memory and frames that beginTurn() delays do not make the descriptor readable, so also call progress()
  /// regularly. One thread can poll the descriptors of several messengers.
  int descriptor() const { return poller_.descriptor(); }

  /// Returns the record with which peers can connect to this rank.
  const std::string& record() const { return directory_->record(); }
  /// Adds a peer by its record. `name`: for errors and log lines.
  void introduce(int peer, std::string name, const std::string& record) {
    directory_->introduce(peer, std::move(name), record);
  }
  rendezvous::RankNames& names() { return directory_->names(); }

  const multirail::MultirailCounters& counters() const { return multirail_->counters(); }
  const std::vector<rendezvous::RailAddress>& rails() const { return directory_->rails(); }
  /// Returns the number of connections that were refused because the other end did not prove to be a peer.
  uint64_t numRefused() const;
  /// Returns the counters of shared memory; nullptr if it is not used.
  const shm::ShmCounters* sharedMemoryCounters() const;
  /// Returns the state of the rails to a peer; nullopt if this rank has used no rail for the peer.
  std::optional<multirail::RouteState> routeTo(int peer) const { return multirail_->routeTo(peer); }
  /// Whether frames to the peer go through shared memory.
  bool sharesMemoryWith(int peer) const;
  /// Returns for how long the peer has been silent while transfers waited for it.
  io::Clock::duration silence(int peer) const { return messenger_->silence(peer); }
  /// Whether the network interface of this rail has a link (a carrier).
  bool isLinkUp(int rail) const { return multirail_->isLinkUp(rail); }
  /// Returns the recent peak rate of a rail in bytes per second; 0: not known.
  double bytesPerSecondOf(int rail) const { return rails_[static_cast<size_t>(rail)]->info().bytesPerSecond; }
  /// Describes the messenger for the log: "authenticated over 2 rails: 10.0.0.5 (eth0), 10.1.0.5 (eth1); shared memory
  /// on this host".
  std::string describe() const;

 private:
  NetworkMessenger(std::unique_ptr<rendezvous::Directory> directory, std::string mode);
  static StatusOr<std::unique_ptr<NetworkMessenger>> create(std::unique_ptr<rendezvous::Directory> directory,
                                                            const NetworkOptions& options, std::string mode);
  Status open(const NetworkOptions& options);
  /// Returns `network`, combined with shared memory if the options allow it and the system provides it.
  std::unique_ptr<transport::Transport> besideSharedMemory(std::unique_ptr<transport::Transport> network,
                                                           const NetworkOptions& options);
  void ready(uint32_t events) override;

  const std::string mode_;
  std::unique_ptr<io::FdReservation> reservation_;
  io::Poller poller_;
  topology::LinkMonitor links_;
  const std::unique_ptr<rendezvous::Directory> directory_;
  std::vector<transport::Rail*> rails_;                 ///< owned by multirail_
  multirail::MultirailTransport* multirail_ = nullptr;  ///< owned by messenger_
  shm::ShmTransport* shm_ = nullptr;                    ///< owned by messenger_; nullptr if shared memory is not used
  std::unique_ptr<messaging::TransportMessenger> messenger_;
  io::Poller::Id linksId_ = 0;
};

}  // namespace agspeed::comm::network
