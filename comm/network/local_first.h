// SPDX-License-Identifier: Apache-2.0
// LocalFirst: combines shared memory and the network into one transport. After the first connect() to a peer, it
// chooses shared memory if the peer can be reached through it, and the network otherwise. Each rank chooses the
// transport for the frames that it sends, and accepts frames from both transports. So the two ranks need not agree. If
// a peer was reached through shared memory and is lost there, the peer is lost: this class does not try the network.
//
// Only one thread at a time may use it. It owns both transports.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/transport/shm/shm_transport.h"
#include "comm/transport/transport.h"

namespace agspeed::comm::network {

class LocalFirst final : public transport::Transport {
 public:
  LocalFirst(std::unique_ptr<shm::ShmTransport> local, std::unique_ptr<transport::Transport> network, int size);
  ~LocalFirst() override;

  /// Returns the number of peers that are reached through shared memory.
  int numLocal() const;

  const Capabilities& capabilities(int peer) const override { return transportOf(peer).capabilities(peer); }
  void attach(Sink& sink) override { sink_ = &sink; }
  void connect(int peer) override { local_->connect(peer); }
  bool canSend(int peer) const override;
  void send(int peer, const transport::OutgoingFrame& frame) override { transportOf(peer).send(peer, frame); }
  void flush(int peer) override { transportOf(peer).flush(peer); }
  void beginTurn() override { network_->beginTurn(); }
  void endTurn() override { network_->endTurn(); }
  void cancelSend(int peer, uint64_t token, ByteView payload) override;
  void cancelReceive(int peer, ByteView target) override;
  bool isFlushed() const override { return local_->isFlushed() && network_->isFlushed(); }
  io::Clock::time_point tick(io::Clock::time_point now) override;
  std::string describeRoute(int peer) const override;
  double coalesceSeconds(int peer) const override;

 private:
  enum class Route : uint8_t { kUndecided, kLocal, kNetwork };
  /// Receives the events of one of the two transports.
  class RouteSink;

  Route& routeOf(int peer) { return routes_[static_cast<size_t>(peer)]; }
  transport::Transport& transportOf(int peer) const;
  void writable(Route route, int peer);
  void lost(Route route, int peer, transport::LossCause cause, const Status& status);

  std::unique_ptr<shm::ShmTransport> local_;
  std::unique_ptr<transport::Transport> network_;
  std::unique_ptr<RouteSink> localSink_;
  std::unique_ptr<RouteSink> networkSink_;
  Sink* sink_ = nullptr;
  std::vector<Route> routes_;  ///< routes_[rank]: the chosen transport to the peer
};

}  // namespace agspeed::comm::network
