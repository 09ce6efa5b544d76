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

constexpr Clock::duration kBusyTick = milliseconds(5);
constexpr Clock::duration kIdleTick = milliseconds(1000);

}  // namespace

StatusOr<std::unique_ptr<ShmTransport>> ShmTransport::create(Poller& poller, Directory& directory,
                                                             Clock::duration handshakeTimeout) {
  AG_ASSIGN_OR_RETURN(Doorbell bell, Doorbell::create());
  AG_ASSIGN_OR_RETURN(FileDescriptor listener, listenAt(localName(directory.publicKey())));
  return std::unique_ptr<ShmTransport>(
      new ShmTransport(poller, directory, handshakeTimeout, std::move(bell), std::move(listener)));
}

ShmTransport::ShmTransport(Poller& poller, Directory& directory, Clock::duration handshakeTimeout, Doorbell bell,
                           FileDescriptor listener)
    : poller_(poller),
      directory_(directory),
      handshakeTimeout_(handshakeTimeout),
      bell_(std::move(bell)),
      // Edge-triggered: each ring is one event, and nobody needs to read it.
      rung_(std::make_unique<Watch>(poller, bell_.bell(), EPOLLIN | EPOLLET, [] {})),
      acceptor_(poller, std::move(listener), directory, bell_, *this),
      lanes_(static_cast<size_t>(directory.options().size)) {
  poller_.setMemory(this);
}

ShmTransport::~ShmTransport() { poller_.setMemory(nullptr); }

const Transport::Capabilities& ShmTransport::capabilities() const {
  static constexpr Capabilities kCapabilities = {.isReliable = true,
                                                 .isAcknowledging = true,
                                                 .copiesSmall = true,
                                                 .segmentBytes = kMaxPayloadBytes / 2,
                                                 .maxPayloadBytes = kMaxPayloadBytes};
  return kCapabilities;
}

ShmTransport::PeerConnections& ShmTransport::laneOf(int peer) {
  std::unique_ptr<PeerConnections>& lane = lanes_.at(static_cast<size_t>(peer));
  if (lane == nullptr) {
    lane = std::make_unique<PeerConnections>(peer);
    used_.push_back(lane.get());
  }
  return *lane;
}

// --- Reaching a peer ------------------------------------------------------------------------------------------------

void ShmTransport::connect(int peer) {
  PeerConnections& lane = laneOf(peer);
  if (lane.stage == Stage::kIdle) lane.stage = Stage::kWanted;
}

void ShmTransport::attempt(PeerConnections& lane, Clock::time_point now) {
  const StatusOr<const Peer*> peer = directory_.find(lane.peer, now);
  if (!peer) return fail(lane, LossCause::kUnreachable, peer.status().message());
  if (*peer == nullptr) return;  // it has not started yet
  const Status status = greet(lane, **peer);
  if (!status && status.code() != StatusCode::kResourceExhausted) {
    fail(lane, LossCause::kUnreachable, status.message());
  }
}

Status ShmTransport::greet(PeerConnections& lane, const Peer& peer) {
  AG_ASSIGN_OR_RETURN(FileDescriptor socket, connectTo(localName(peer.record.publicKey)));
  if (!trustedProcessAt(socket)) return unavailable("its process belongs to another user");
  AG_ASSIGN_OR_RETURN(SharedMemory ring, SharedMemory::create(sizeof(Ring)));
  const DirectoryOptions& self = directory_.options();
  lane.initiator.emplace(
      Claim{self.protection, self.epoch, static_cast<uint32_t>(self.rank), static_cast<uint32_t>(lane.peer)},
      peer.secret);
  const std::array shared = {ring.descriptor().get(), bell_.page(), bell_.bell()};
  if (!sendMessage(socket, lane.initiator->request(), shared)) return unavailable("its local socket takes nothing");
  lane.ring.emplace(std::move(ring));
  lane.waited = {};
  lane.stage = Stage::kGreeting;
  lane.outgoing = std::make_unique<Watch>(poller_, std::move(socket), EPOLLIN, [this, &lane] {
    lane.stage == Stage::kGreeting ? readReply(lane) : gone(lane);
  });
  return {};
}

void ShmTransport::readReply(PeerConnections& lane) {
  ReplyBytes reply;
  Received received = receiveMessage(lane.outgoing->descriptor(), reply);
  if (received.outcome == Received::Outcome::kNothingYet) return;
  const bool isWhole = received.outcome == Received::Outcome::kMessage && received.descriptors.size() == 2;
  const std::optional<ConfirmBytes> confirm = isWhole ? lane.initiator->confirm(reply) : std::nullopt;
  if (!confirm) return fail(lane, LossCause::kUnreachable, "it refused the connection");
  const Status status =
      finishHandshake(lane, std::move(received.descriptors[0]), std::move(received.descriptors[1]), *confirm);
  if (!status) return fail(lane, LossCause::kUnreachable, status.message());
  sink_->writable(lane.peer);
}

Status ShmTransport::finishHandshake(PeerConnections& lane, FileDescriptor page, FileDescriptor bell,
                                     const ConfirmBytes& confirm) {
  if (lane.bell == nullptr) {
    AG_ASSIGN_OR_RETURN(Doorbell opened, Doorbell::open(page, std::move(bell)));
    lane.bell = std::make_unique<Doorbell>(std::move(opened));
  }
  lane.ring->dropDescriptor();
  lane.outbox = std::make_unique<Sender>(std::move(*lane.ring), lane.peer, *sink_, *lane.bell, counters_);
  if (!sendMessage(lane.outgoing->descriptor(), confirm, {})) return unavailable("its local socket takes nothing");
  lane.ring.reset();
  lane.initiator.reset();
  lane.stage = Stage::kUp;
  return {};
}

void ShmTransport::accepted(int peer, AcceptedConnection arrival) {
  PeerConnections& lane = laneOf(peer);
  if (lane.inbox != nullptr || lane.stage == Stage::kLost) return;
  if (lane.bell == nullptr) lane.bell = std::make_unique<Doorbell>(std::move(arrival.bell));
  FileDescriptor alive = watchProcess(arrival.process);
  const int process = alive.get();
  lane.inbox = std::make_unique<Receiver>(std::move(arrival.ring), peer, arrival.process, std::move(alive), *sink_,
                                          *lane.bell, counters_);
  const auto onEnd = [this, &lane] { gone(lane); };
  lane.incoming = std::make_unique<Watch>(poller_, std::move(arrival.socket), EPOLLIN, onEnd);
  // Children of the peer may hold its sockets open when it has ended.
  if (process >= 0) lane.process = std::make_unique<Watch>(poller_, process, EPOLLIN, onEnd);
}

// --- Losing a peer --------------------------------------------------------------------------------------------------

void ShmTransport::takeIn(int peer) {
  acceptor_.readAll();
  const PeerConnections& lane = laneOf(peer);
  while (lane.inbox != nullptr && lane.inbox->read() == Receiver::Outcome::kSomething) continue;
}

void ShmTransport::gone(PeerConnections& lane) {
  // What it wrote and read before it went still counts.
  takeIn(lane.peer);
  if (lane.stage == Stage::kUp) lane.outbox->advance();
  if (lane.stage == Stage::kUp) return fail(lane, LossCause::kClosed, "its process has ended");
  // It came and went before it was reached; the attempt to reach it will tell.
  retire(std::move(lane.incoming));
  retire(std::move(lane.process));
}

void ShmTransport::fail(PeerConnections& lane, LossCause cause, const std::string& why) {
  if (lane.stage == Stage::kLost || (lane.stage == Stage::kUnreachable && cause == LossCause::kUnreachable)) return;
  lane.stage = cause == LossCause::kUnreachable ? Stage::kUnreachable : Stage::kLost;
  lane.initiator.reset();
  lane.ring.reset();
  retire(std::move(lane.outgoing));
  if (cause != LossCause::kUnreachable) {
    retire(std::move(lane.incoming));
    retire(std::move(lane.process));
  }
  sink_->lost(lane.peer, cause,
              unavailable("rank {}{}{}: {}", lane.peer,
                          cause == LossCause::kUnreachable ? " shares no memory with rank " : " is lost to rank ",
                          directory_.options().rank, why));
}

void ShmTransport::retire(std::unique_ptr<Watch> watch) {
  if (watch == nullptr) return;
  watch->stop();
  retired_.push_back(std::move(watch));
}

// --- Frames ---------------------------------------------------------------------------------------------------------

bool ShmTransport::canSend(int peer) const {
  const PeerConnections* lane = lanes_.at(static_cast<size_t>(peer)).get();
  return lane != nullptr && lane->stage == Stage::kUp && lane->outbox->canSend();
}

void ShmTransport::send(int peer, const OutgoingFrame& frame) {
  AG_CHECK(canSend(peer), "send() without canSend()");
  laneOf(peer).outbox->send(frame);
}

void ShmTransport::cancelReceive(int peer, ByteView target) {
  const PeerConnections* lane = lanes_.at(static_cast<size_t>(peer)).get();
  if (lane != nullptr && lane->inbox != nullptr) lane->inbox->cancelReceive(target);
}

void ShmTransport::cancelSend(int peer, uint64_t token, ByteView) {
  const PeerConnections* lane = lanes_.at(static_cast<size_t>(peer)).get();
  if (lane != nullptr && lane->outbox != nullptr) lane->outbox->cancelSend(token);
}

bool ShmTransport::isFlushed() const {
  return std::all_of(used_.begin(), used_.end(), [](const PeerConnections* lane) {
    return lane->stage != Stage::kUp || lane->outbox->isFlushed();
  });
}

bool ShmTransport::poll() {
  bool hasChanged = false;
  for (size_t i = 0; i < used_.size(); ++i) {  // sinks may use further lanes
    PeerConnections& lane = *used_[i];
    const bool isGone = lane.inbox != nullptr && lane.incoming == nullptr;
    if (lane.inbox != nullptr && !isGone) {
      const Receiver::Outcome outcome = lane.inbox->read();
      hasChanged = outcome != Receiver::Outcome::kNothing || hasChanged;
      if (outcome == Receiver::Outcome::kBroken) {
        fail(lane, LossCause::kCorrupted, "its shared memory holds what no intact rank writes");
      }
    }
    if (lane.stage == Stage::kUp) hasChanged = lane.outbox->advance() || hasChanged;
  }
  return hasChanged;
}

void ShmTransport::arm() {
  for (PeerConnections* lane : used_) {
    if (lane->stage == Stage::kUp) lane->outbox->askToBeWoken();
  }
  bell_.setSleeping(true);
}

Clock::time_point ShmTransport::tick(Clock::time_point now) {
  retired_.clear();
  const Clock::duration looked = active_.look(now);
  acceptor_.expire(now);
  bool isBusy = acceptor_.numPending() > 0;
  for (size_t i = 0; i < used_.size(); ++i) {
    PeerConnections& lane = *used_[i];
    if (lane.stage == Stage::kGreeting && (lane.waited += looked) > handshakeTimeout_) {
      fail(lane, LossCause::kSilent, "its process was reached and does not greet, it is stopped or hangs");
    }
    if (lane.stage == Stage::kWanted) attempt(lane, now);
    isBusy = isBusy || lane.stage == Stage::kWanted || lane.stage == Stage::kGreeting;
  }
  return now + (isBusy ? kBusyTick : kIdleTick);
}

std::string ShmTransport::route(int peer) const {
  const PeerConnections* lane = lanes_.at(static_cast<size_t>(peer)).get();
  return lane != nullptr && lane->stage == Stage::kUp ? "shared memory" : "";
}

}  // namespace agspeed::comm::shm
