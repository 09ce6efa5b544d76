// SPDX-License-Identifier: Apache-2.0
#include "comm/network/local_first.h"

#include <algorithm>
#include <utility>

#include "runtime/base/log.h"

namespace agspeed::comm::network {

class LocalFirst::RouteSink final : public transport::Transport::Sink {
 public:
  RouteSink(LocalFirst& transport, Route route) : transport_(transport), route_(route) {}

  std::span<std::byte> place(int peer, const wire::FrameHeader& header) override {
    return transport_.sink_->place(peer, header);
  }
  void arrived(int peer, const wire::FrameHeader& header) override { transport_.sink_->arrived(peer, header); }
  void acknowledged(int peer, uint64_t token) override { transport_.sink_->acknowledged(peer, token); }
  void writable(int peer) override { transport_.writable(route_, peer); }
  void lost(int peer, transport::LossCause cause, const Status& status) override {
    transport_.lost(route_, peer, cause, status);
  }

 private:
  LocalFirst& transport_;
  const Route route_;
};

LocalFirst::LocalFirst(std::unique_ptr<shm::ShmTransport> local, std::unique_ptr<transport::Transport> network,
                       int size)
    : local_(std::move(local)),
      network_(std::move(network)),
      localSink_(std::make_unique<RouteSink>(*this, Route::kLocal)),
      networkSink_(std::make_unique<RouteSink>(*this, Route::kNetwork)),
      routes_(static_cast<size_t>(size), Route::kUndecided) {
  local_->attach(*localSink_);
  network_->attach(*networkSink_);
}

LocalFirst::~LocalFirst() = default;

int LocalFirst::numLocal() const { return static_cast<int>(std::count(routes_.begin(), routes_.end(), Route::kLocal)); }

transport::Transport& LocalFirst::transportOf(int peer) const {
  if (routes_[static_cast<size_t>(peer)] == Route::kLocal) return *local_;
  return *network_;
}

double LocalFirst::coalesceSeconds(int peer) const {
  // Do not coalesce if any peer uses shared memory, because its messages would then wait for events of the network.
  return numLocal() > 0 ? 0 : network_->coalesceSeconds(peer);
}

bool LocalFirst::canSend(int peer) const {
  return routes_[static_cast<size_t>(peer)] != Route::kUndecided && transportOf(peer).canSend(peer);
}

std::string LocalFirst::describeRoute(int peer) const {
  return routes_[static_cast<size_t>(peer)] == Route::kUndecided ? "" : transportOf(peer).describeRoute(peer);
}

void LocalFirst::cancelReceive(int peer, ByteView target) {
  local_->cancelReceive(peer, target);
  network_->cancelReceive(peer, target);
}

void LocalFirst::cancelSend(int peer, uint64_t token, ByteView payload) {
  local_->cancelSend(peer, token, payload);
  network_->cancelSend(peer, token, payload);
}

io::Clock::time_point LocalFirst::tick(io::Clock::time_point now) {
  const io::Clock::time_point next = local_->tick(now);  // call it first, because it may change routes to kNetwork
  return std::min(next, network_->tick(now));
}

void LocalFirst::writable(Route route, int peer) {
  if (routeOf(peer) == Route::kUndecided && route == Route::kLocal) routeOf(peer) = route;
  if (routeOf(peer) == route) sink_->writable(peer);
}

void LocalFirst::lost(Route route, int peer, transport::LossCause cause, const Status& status) {
  if (routeOf(peer) == Route::kUndecided && route == Route::kLocal && cause == transport::LossCause::kUnreachable) {
    AG_LOG(kInfo, status.message() + "; it is reached over the network");
    routeOf(peer) = Route::kNetwork;
    network_->connect(peer);
    if (network_->canSend(peer)) sink_->writable(peer);  // this rank was already connected to the peer over the network
    return;
  }
  if (routeOf(peer) == Route::kUndecided) routeOf(peer) = route;
  if (route == Route::kNetwork) local_->drainPeer(peer);
  // Frames that were corrupted on one transport are never retransmitted. So the peer is lost, even if this rank sends
  // to it over the other transport.
  if (routeOf(peer) == route || cause == transport::LossCause::kCorrupted) sink_->lost(peer, cause, status);
}

}  // namespace agspeed::comm::network
