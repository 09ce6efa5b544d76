// SPDX-License-Identifier: Apache-2.0
// NetworkMessenger: messages between processes over all network interfaces of the host, and through shared memory
// between processes of one host. It puts the parts together: rails (open_rails.h) as one transport, shared memory
// beside it (local_first.h), and messages on top. Ranks find each other through a store.
//
// Threading: as messenger.h says; no thread of its own. The store outlives it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/io/fd_limit.h"
#include "comm/io/poller.h"
#include "comm/messaging/transport_messenger.h"
#include "comm/network/local_first.h"
#include "comm/network/network_options.h"
#include "comm/rendezvous/directory.h"
#include "comm/topology/link_monitor.h"
#include "comm/transport/multirail/multirail_transport.h"

namespace agspeed::comm {

class NetworkMessenger final : public Messenger, private Poller::Handler {
 public:
  /// Listens on the rails and publishes this rank in the store. It connects to a peer only when there is something to
  /// send to it or to receive from it.
  static StatusOr<std::unique_ptr<NetworkMessenger>> create(Store& store, const NetworkOptions& options);
  ~NetworkMessenger() override;

  int rank() const override { return messenger_->rank(); }
  int size() const override { return messenger_->size(); }
  void send(Transfer& transfer) override { messenger_->send(transfer); }
  void receive(Transfer& transfer) override { messenger_->receive(transfer); }
  void cancel(Transfer& transfer, const Status& reason) override { messenger_->cancel(transfer, reason); }
  void dropCommunicator(uint32_t communicator) override { messenger_->dropCommunicator(communicator); }
  bool probe(int peer, const MessageId& id) const override { return messenger_->probe(peer, id); }
  bool progress(Clock::time_point until) override { return messenger_->progress(until); }
  bool hasUnsent() const override { return messenger_->hasUnsent(); }
  /// Delays the control frames of the following receive() calls until the end of the next progress(), so that they
  /// leave together.
  void beginTurn() { multirail_->beginTurn(); }
  double bytesPerSecond() const override;
  double roundTripSeconds(int peer) const override;
  uint32_t host() const override;
  void wake() override { poller_.wake(); }
  /// A descriptor that is readable while progress() has something to do; timers and shared memory do not count. One
  /// thread can wait for several messengers with it.
  int descriptor() const { return poller_.descriptor(); }

  const MultirailCounters& counters() const { return multirail_->counters(); }
  const std::vector<RailAddress>& rails() const { return directory_.rails(); }
  /// Connections refused because the other end did not prove to be a peer.
  uint64_t numRefused() const;
  /// Counters of shared memory; nullptr if it is not used.
  const shm::ShmCounters* sharedMemoryCounters() const;
  /// For the log: "authenticated over 2 rails: 10.0.0.5 (eth0), 10.1.0.5 (eth1); shared memory on this host".
  std::string describe() const;

 private:
  NetworkMessenger(Store& store, DirectoryOptions options, std::string mode);
  Status open(const NetworkOptions& options);
  /// Returns `network`, combined with shared memory if that is wanted and possible.
  std::unique_ptr<Transport> besideSharedMemory(std::unique_ptr<Transport> network, const NetworkOptions& options);
  void ready(uint32_t events) override;

  const std::string mode_;
  std::unique_ptr<FdReservation> reservation_;
  Poller poller_;
  LinkMonitor links_;
  Directory directory_;
  std::vector<Rail*> rails_;                 ///< owned by multirail_
  MultirailTransport* multirail_ = nullptr;  ///< owned by messenger_
  shm::ShmTransport* shm_ = nullptr;         ///< owned by messenger_; nullptr if shared memory is not used
  std::unique_ptr<TransportMessenger> messenger_;
  Poller::Id linksId_ = 0;
};

}  // namespace agspeed::comm
