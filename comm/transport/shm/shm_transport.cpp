// SPDX-License-Identifier: Apache-2.0
#include "comm/transport/shm/shm_transport.h"

#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/log.h"

namespace agspeed::comm::shm {
namespace {

using std::chrono::milliseconds;

constexpr io::Clock::duration kBusyTick = milliseconds(5);
constexpr io::Clock::duration kIdleTick = milliseconds(1000);

}  // namespace

StatusOr<std::unique_ptr<ShmTransport>> ShmTransport::create(io::Poller& poller, rendezvous::Directory& directory,
                                                             io::Clock::duration handshakeTimeout) {
  AG_ASSIGN_OR_RETURN(Doorbell bell, Doorbell::create());
  AG_ASSIGN_OR_RETURN(io::FileDescriptor listener, listenAt(localName(directory.publicKey())));
  return std::unique_ptr<ShmTransport>(
      new ShmTransport(poller, directory, handshakeTimeout, std::move(bell), std::move(listener)));
}

ShmTransport::ShmTransport(io::Poller& poller, rendezvous::Directory& directory, io::Clock::duration handshakeTimeout,
                           Doorbell bell, io::FileDescriptor listener)
    : poller_(poller),
      directory_(directory),
      handshakeTimeout_(handshakeTimeout),
      bell_(std::move(bell)),
      // Edge-triggered: each ring is one event, and the eventfd need not be read.
      rung_(std::make_unique<io::Watch>(poller, bell_.bell(), EPOLLIN | EPOLLET, [] {})),
      acceptor_(poller, std::move(listener), directory, bell_, *this),
      peers_(static_cast<size_t>(directory.options().size)) {
  poller_.setMemory(this);
}

ShmTransport::~ShmTransport() { poller_.setMemory(nullptr); }

const transport::Transport::Capabilities& ShmTransport::capabilities(int) const {
  static constexpr Capabilities kCapabilities = {.isReliable = true,
                                                 .isAcknowledging = true,
                                                 .copiesSmall = true,
                                                 .segmentBytes = wire::kMaxPayloadBytes / 2,
                                                 .maxPayloadBytes = wire::kMaxPayloadBytes};
  return kCapabilities;
}

ShmTransport::PeerConnections& ShmTransport::connectionsOf(int peer) {
  std::unique_ptr<PeerConnections>& connections = peers_.at(static_cast<size_t>(peer));
  if (connections == nullptr) {
    connections = std::make_unique<PeerConnections>(peer);
    used_.push_back(connections.get());
  }
  return *connections;
}

// --- Reaching a peer ------------------------------------------------------------------------------------------------

void ShmTransport::connect(int peer) {
  PeerConnections& connections = connectionsOf(peer);
  if (connections.stage == Stage::kIdle) connections.stage = Stage::kWanted;
}

void ShmTransport::attempt(PeerConnections& connections, io::Clock::time_point now) {
  const StatusOr<const rendezvous::Peer*> peer = directory_.find(connections.peer, now);
  if (!peer.hasValue()) return fail(connections, transport::LossCause::kUnreachable, peer.status().message());
  if (*peer == nullptr) return;  // the peer has not published itself yet
  const Status status = beginHandshake(connections, **peer);
  if (!status.isOk() && status.code() != StatusCode::kResourceExhausted) {
    fail(connections, transport::LossCause::kUnreachable, status.message());
  }
}

Status ShmTransport::beginHandshake(PeerConnections& connections, const rendezvous::Peer& peer) {
  AG_ASSIGN_OR_RETURN(io::FileDescriptor socket, connectTo(localName(peer.record.publicKey)));
  if (!trustedProcessAt(socket)) return unavailable("its process belongs to another user");
  AG_ASSIGN_OR_RETURN(SharedMemory ring, SharedMemory::create(sizeof(Ring)));
  const rendezvous::DirectoryOptions& self = directory_.options();
  connections.initiator.emplace(wire::Claim{self.protection, self.epoch, static_cast<uint32_t>(self.rank),
                                            static_cast<uint32_t>(connections.peer)},
                                peer.secret);
  const std::array shared = {ring.descriptor().get(), bell_.page(), bell_.bell()};
  if (!sendMessage(socket, connections.initiator->request(), shared))
    return unavailable("its local socket does not accept the request");
  connections.ring.emplace(std::move(ring));
  connections.waited = {};
  connections.stage = Stage::kHandshaking;
  connections.outgoing = std::make_unique<io::Watch>(poller_, std::move(socket), EPOLLIN, [this, &connections] {
    connections.stage == Stage::kHandshaking ? readReply(connections) : peerEnded(connections);
  });
  return {};
}

void ShmTransport::readReply(PeerConnections& connections) {
  wire::ReplyBytes reply;
  Received received = receiveMessage(connections.outgoing->descriptor(), reply);
  if (received.outcome == Received::Outcome::kNothingYet) return;
  const bool isWhole = received.outcome == Received::Outcome::kMessage && received.descriptors.size() == 2;
  const std::optional<wire::ConfirmBytes> confirm = isWhole ? connections.initiator->confirm(reply) : std::nullopt;
  if (!confirm) return fail(connections, transport::LossCause::kUnreachable, "it refused the connection");
  const Status status =
      finishHandshake(connections, std::move(received.descriptors[0]), std::move(received.descriptors[1]), *confirm);
  if (!status.isOk()) return fail(connections, transport::LossCause::kUnreachable, status.message());
  sink_->writable(connections.peer);
}

Status ShmTransport::finishHandshake(PeerConnections& connections, io::FileDescriptor page, io::FileDescriptor bell,
                                     const wire::ConfirmBytes& confirm) {
  if (connections.bell == nullptr) {
    AG_ASSIGN_OR_RETURN(Doorbell opened, Doorbell::open(page, std::move(bell)));
    connections.bell = std::make_unique<Doorbell>(std::move(opened));
  }
  connections.ring->dropDescriptor();
  connections.sender =
      std::make_unique<Sender>(std::move(*connections.ring), connections.peer, *sink_, *connections.bell, counters_);
  if (!sendMessage(connections.outgoing->descriptor(), confirm, {}))
    return unavailable("its local socket does not accept the confirmation");
  connections.ring.reset();
  connections.initiator.reset();
  connections.stage = Stage::kUp;
  return {};
}

void ShmTransport::accepted(int peer, AcceptedConnection connection) {
  PeerConnections& connections = connectionsOf(peer);
  if (connections.receiver != nullptr || connections.stage == Stage::kLost) return;
  if (connections.bell == nullptr) connections.bell = std::make_unique<Doorbell>(std::move(connection.bell));
  io::FileDescriptor alive = watchProcess(connection.process);
  const int process = alive.get();
  connections.receiver = std::make_unique<Receiver>(std::move(connection.ring), peer, connection.process,
                                                    std::move(alive), *sink_, *connections.bell, counters_);
  const auto onEnd = [this, &connections] { peerEnded(connections); };
  connections.incoming = std::make_unique<io::Watch>(poller_, std::move(connection.socket), EPOLLIN, onEnd);
  // Watch the process too: its children may keep its sockets open after it has ended.
  if (process >= 0) connections.process = std::make_unique<io::Watch>(poller_, process, EPOLLIN, onEnd);
}

// --- Losing a peer --------------------------------------------------------------------------------------------------

void ShmTransport::drainPeer(int peer) {
  acceptor_.readAll();
  const PeerConnections& connections = connectionsOf(peer);
  while (connections.receiver != nullptr && connections.receiver->read() == Receiver::Outcome::kSomething) continue;
}

void ShmTransport::peerEnded(PeerConnections& connections) {
  // Before its end, the peer may have written frames, and may have read frames of this rank. Handle both.
  drainPeer(connections.peer);
  if (connections.stage == Stage::kUp) connections.sender->advance();
  if (connections.stage == Stage::kUp) return fail(connections, transport::LossCause::kClosed, "its process has ended");
  // The peer connected to this rank, and ended before this rank connected to it. This rank's next attempt to connect
  // will report the loss.
  retire(std::move(connections.incoming));
  retire(std::move(connections.process));
}

void ShmTransport::fail(PeerConnections& connections, transport::LossCause cause, const std::string& why) {
  if (connections.stage == Stage::kLost ||
      (connections.stage == Stage::kUnreachable && cause == transport::LossCause::kUnreachable))
    return;
  connections.stage = cause == transport::LossCause::kUnreachable ? Stage::kUnreachable : Stage::kLost;
  connections.initiator.reset();
  connections.ring.reset();
  retire(std::move(connections.outgoing));
  if (cause != transport::LossCause::kUnreachable) {
    retire(std::move(connections.incoming));
    retire(std::move(connections.process));
  }
  sink_->lost(connections.peer, cause,
              unavailable("{}{}{}: {}", directory_.names().of(connections.peer),
                          cause == transport::LossCause::kUnreachable ? " shares no memory with " : " is lost to ",
                          directory_.names().of(directory_.options().rank), why));
}

void ShmTransport::retire(std::unique_ptr<io::Watch> watch) {
  if (watch == nullptr) return;
  watch->stop();
  retired_.push_back(std::move(watch));
}

// --- Frames ---------------------------------------------------------------------------------------------------------

bool ShmTransport::canSend(int peer) const {
  const PeerConnections* connections = peers_.at(static_cast<size_t>(peer)).get();
  return connections != nullptr && connections->stage == Stage::kUp && connections->sender->canSend();
}

void ShmTransport::send(int peer, const transport::OutgoingFrame& frame) {
  AG_CHECK(canSend(peer), "send() without canSend()");
  connectionsOf(peer).sender->send(frame);
}

void ShmTransport::cancelReceive(int peer, ByteView target) {
  const PeerConnections* connections = peers_.at(static_cast<size_t>(peer)).get();
  if (connections != nullptr && connections->receiver != nullptr) connections->receiver->cancelReceive(target);
}

void ShmTransport::cancelSend(int peer, uint64_t token, ByteView) {
  const PeerConnections* connections = peers_.at(static_cast<size_t>(peer)).get();
  if (connections != nullptr && connections->sender != nullptr) connections->sender->cancelSend(token);
}

bool ShmTransport::isFlushed() const {
  return std::all_of(used_.begin(), used_.end(), [](const PeerConnections* connections) {
    return connections->stage != Stage::kUp || connections->sender->isFlushed();
  });
}

bool ShmTransport::poll() {
  bool hasChanged = false;
  for (size_t i = 0; i < used_.size(); ++i) {  // use an index, because a sink may add peers to used_
    PeerConnections& connections = *used_[i];
    const bool isGone = connections.receiver != nullptr && connections.incoming == nullptr;
    if (connections.receiver != nullptr && !isGone) {
      const Receiver::Outcome outcome = connections.receiver->read();
      hasChanged = outcome != Receiver::Outcome::kNothing || hasChanged;
      if (outcome == Receiver::Outcome::kBroken) {
        fail(connections, transport::LossCause::kCorrupted, "its shared memory holds bytes that no intact rank writes");
      }
    }
    if (connections.stage == Stage::kUp) hasChanged = connections.sender->advance() || hasChanged;
  }
  return hasChanged;
}

void ShmTransport::arm() {
  for (PeerConnections* connections : used_) {
    if (connections->stage == Stage::kUp) connections->sender->askToBeWoken();
  }
  bell_.setSleeping(true);
}

io::Clock::time_point ShmTransport::tick(io::Clock::time_point now) {
  retired_.clear();
  const io::Clock::duration elapsed = active_.look(now);
  acceptor_.expire(now);
  bool isBusy = acceptor_.numPending() > 0;
  for (size_t i = 0; i < used_.size(); ++i) {
    PeerConnections& connections = *used_[i];
    if (connections.stage == Stage::kHandshaking && (connections.waited += elapsed) > handshakeTimeout_) {
      fail(connections, transport::LossCause::kSilent,
           "its process was reached but does not answer the handshake: it is stopped or hangs");
    }
    if (connections.stage == Stage::kWanted) attempt(connections, now);
    isBusy = isBusy || connections.stage == Stage::kWanted || connections.stage == Stage::kHandshaking;
  }
  return now + (isBusy ? kBusyTick : kIdleTick);
}

std::string ShmTransport::describeRoute(int peer) const {
  const PeerConnections* connections = peers_.at(static_cast<size_t>(peer)).get();
  return connections != nullptr && connections->stage == Stage::kUp ? "shared memory" : "";
}

}  // namespace agspeed::comm::shm
