// SPDX-License-Identifier: Apache-2.0
#include "comm/transport/multirail/multirail_transport.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/log.h"

namespace agspeed::comm::multirail {
namespace {

using std::chrono::milliseconds;
using transport::LossCause, transport::Rails;

constexpr io::Clock::duration kAcknowledgeAfter = milliseconds(20), kIdleTick = milliseconds(1000);

}  // namespace

class MultirailTransport::RailSink final : public transport::Transport::Sink {
 public:
  RailSink(MultirailTransport& multirail, int rail) : multirail_(multirail), rail_(rail) {}

  std::span<std::byte> place(int peer, const wire::FrameHeader& header) override {
    return multirail_.place(rail_, peer, header);
  }
  void arrived(int peer, const wire::FrameHeader& header) override { multirail_.arrived(rail_, peer, header); }
  void acknowledged(int, uint64_t) override {}
  void writable(int peer) override { multirail_.writable(rail_, peer); }
  void lost(int peer, LossCause cause, const Status& status) override { multirail_.lost(rail_, peer, cause, status); }

 private:
  MultirailTransport& multirail_;
  const int rail_;
};

MultirailTransport::Peer::Peer(const Rails& rails, int rank, const Capabilities& expected)
    : rank(rank), scheduler(rails, rank), acks(rails.size()), reachability(rails.size()), capabilities(expected) {}

MultirailTransport::MultirailTransport(Rails rails, const rendezvous::RankNames& names, MultirailOptions options)
    : rails_(std::move(rails)), names_(names), options_(options) {
  AG_CHECK(!rails_.empty(), "a multirail transport without rails");
  capabilities_ = rails_.front()->capabilities(options_.rank);
  for (size_t i = 0; i < rails_.size(); ++i) {
    const Capabilities& rail = rails_[i]->capabilities(options_.rank);
    capabilities_.isReliable = capabilities_.isReliable && rail.isReliable;
    capabilities_.segmentBytes = std::min(capabilities_.segmentBytes, rail.segmentBytes);
    capabilities_.maxPayloadBytes = std::min(capabilities_.maxPayloadBytes, rail.maxPayloadBytes);
    sinks_.push_back(std::make_unique<RailSink>(*this, static_cast<int>(i)));
    rails_[i]->attach(*sinks_.back());
  }
  maxPayloadBytes_ = capabilities_.maxPayloadBytes;
  capabilities_.maxPayloadBytes = std::min(maxPayloadBytes_, RailScheduler::kLongBytes);
  if (rails_.size() > 1) capabilities_.segmentBytes = RailScheduler::kSharedBytes;
  capabilities_.isAcknowledging = true;
  counters_.rails.resize(rails_.size());
  isLinkUp_.resize(rails_.size(), true);
}

MultirailTransport::~MultirailTransport() = default;

MultirailTransport::Peer& MultirailTransport::peerOf(int rank) {
  const auto [entry, isNew] = peers_.try_emplace(rank, rails_, rank, capabilities_);
  if (isNew) {
    for (const auto& rail : rails_) rail->connect(rank);
  }
  return entry->second;
}

const MultirailTransport::Peer* MultirailTransport::findPeer(int rank) const {
  const auto found = peers_.find(rank);
  return found == peers_.end() ? nullptr : &found->second;
}

MultirailTransport::Peer* MultirailTransport::findPeer(int rank) {
  return const_cast<Peer*>(std::as_const(*this).findPeer(rank));
}

const transport::Transport::Capabilities& MultirailTransport::capabilities(int rank) const {
  const Peer* peer = findPeer(rank);
  return peer == nullptr ? capabilities_ : peer->capabilities;
}

std::string MultirailTransport::describeRoute(int rank) const {
  std::string text;
  for (const auto& rail : rails_) {
    const std::string route = rail->describeRoute(rank);
    if (!route.empty()) text += (text.empty() ? "" : ", ") + route;
  }
  return text;
}

bool MultirailTransport::mayStillReceive(int rank) const {
  return std::any_of(rails_.begin(), rails_.end(), [&](const auto& rail) { return rail->mayStillReceive(rank); });
}

double MultirailTransport::coalesceSeconds(int rank) const {
  const Peer* peer = findPeer(rank);
  if (peer == nullptr || !peer->reachability.isReached()) return 0;
  double least = std::numeric_limits<double>::max();
  for (size_t rail = 0; rail < rails_.size(); ++rail) {
    if (peer->reachability.isUp(rail)) least = std::min(least, rails_[rail]->coalesceSeconds(rank));
  }
  return least;
}

// --- Sending --------------------------------------------------------------------------------------------------------

bool MultirailTransport::canSend(int rank) const {
  const Peer* peer = findPeer(rank);
  return peer != nullptr && canSend(*peer);
}

bool MultirailTransport::canSend(const Peer& peer) const {
  return !peer.reachability.isLost() && peer.window.numToResend() == 0 && !peer.window.isFull() &&
         peer.scheduler.canAnySend() &&
         !peer.scheduler.isFullOneWorthWaitingFor(peer.reachability, capabilities_.segmentBytes);
}

void MultirailTransport::send(int rank, const transport::OutgoingFrame& frame) {
  Peer& peer = peerOf(rank);
  const int rail = peer.scheduler.nextRail(frame.payload.size());
  AG_CHECK(rail != transport::kNoRail, "send() without canSend()");
  transmit(peer, peer.window.add(frame, rail, sendTime()), rail);
}

void MultirailTransport::resend(Peer& peer) {
  while (InFlightFrame* sent = peer.window.nextToResend()) {
    const int rail = peer.scheduler.nextRail(sent->frame.payload.size());
    if (rail == transport::kNoRail) return;
    peer.window.resend(*sent, rail, sendTime());
    sent->frame.mayWait = false;
    ++counters_.numResent;
    transmit(peer, sent->frame, rail);
  }
}

/// `frame` is a copy of the window's frame, because send() may report the loss of the rail, which changes the window.
void MultirailTransport::transmit(Peer& peer, transport::OutgoingFrame frame, int rail) {
  const auto index = static_cast<size_t>(rail);
  frame.header.epoch = options_.epoch;
  frame.header.acknowledged = peer.acks.next();
  peer.acks.ackSent();
  peer.scheduler.sentOn(rail);
  if (isInTurn_ && frame.header.length == 0) {
    frame.mayWait = true;
    flushAtEndOfTurn(peer);
  }
  ++counters_.rails[index].numFrames;
  counters_.rails[index].numBytes += frame.payload.size();
  rails_[index]->send(peer.rank, frame);
}

void MultirailTransport::fitPayloads(Peer& peer) const {
  const bool isAlone = rails_.size() == 1;
  peer.capabilities = capabilities_;
  if (peer.scheduler.areAllQuick(peer.reachability, maxPayloadBytes_)) {
    peer.capabilities.maxPayloadBytes = maxPayloadBytes_;
    peer.capabilities.segmentBytes = isAlone ? maxPayloadBytes_ : RailScheduler::kQuickSharedBytes;
  } else if (!isAlone) {
    peer.capabilities.maxPayloadBytes = peer.scheduler.longestPayload(peer.reachability, capabilities_.maxPayloadBytes);
  }
}

bool MultirailTransport::sendUnnumbered(Peer& peer, wire::FrameHeader header) {
  const int rail = peer.scheduler.nextRail(0);
  if (rail == transport::kNoRail) return false;
  transmit(peer, {header, {}}, rail);
  return true;
}

void MultirailTransport::acknowledge(Peer& peer) {
  wire::FrameHeader header;
  header.kind = wire::FrameKind::kAck;
  if (sendUnnumbered(peer, header)) ++counters_.numAcks;
}

void MultirailTransport::acknowledgeSoon(Peer& peer) { isInTurn_ ? flushAtEndOfTurn(peer) : acknowledge(peer); }

void MultirailTransport::flushAtEndOfTurn(Peer& peer) {
  if (!std::exchange(peer.isToFlush, true)) toFlush_.push_back(&peer);
}

void MultirailTransport::endTurn() {
  isInTurn_ = false;
  while (!toFlush_.empty()) {
    Peer& peer = *toFlush_.back();
    toFlush_.pop_back();
    peer.isToFlush = false;
    if (peer.acks.isDue()) acknowledge(peer);
    flush(peer.rank);
  }
}

void MultirailTransport::flush(int rank) {
  if (findPeer(rank) == nullptr) return;
  for (const auto& rail : rails_) rail->flush(rank);
}

void MultirailTransport::cancelSend(int rank, uint64_t token, ByteView payload) {
  Peer* peer = findPeer(rank);
  if (peer == nullptr) return;
  for (const auto& rail : rails_) rail->cancelSend(rank, token, payload);
  peer->window.cancel(token, payload);
}

bool MultirailTransport::isFlushed() const {
  return std::all_of(rails_.begin(), rails_.end(), [](const auto& rail) { return rail->isFlushed(); }) &&
         std::all_of(peers_.begin(), peers_.end(), [](const auto& entry) {
           const Peer& peer = entry.second;
           return peer.reachability.isLost() ||
                  (peer.window.numToResend() == 0 && !(peer.acks.isDue() && peer.reachability.isReached()));
         });
}

io::Clock::time_point MultirailTransport::tick(io::Clock::time_point now) {
  io::Clock::time_point next = now + kIdleTick;
  for (const auto& rail : rails_) next = std::min(next, rail->tick(now));
  for (auto& [rank, peer] : peers_) {
    if (peer.reachability.isLost()) continue;
    peer.reachability.tick();
    if (!peer.window.isEmpty()) fitPayloads(peer);
    checkReachability(peer, now);
    if (!capabilities_.isReliable) {
      peer.window.expire(now);
      resend(peer);
    }
    if (peer.acks.hasUnsentAck()) acknowledge(peer);
    // The sink may wait for a full rail. If this rail is lost, it never reports that it has room again.
    if (rails_.size() > 1 && !peer.window.isEmpty() && canSend(peer)) sink_->writable(rank);
    const bool isBusy = !peer.window.isEmpty() || peer.acks.hasUnsentAck();
    if (isBusy || peer.reachability.isSought()) next = std::min(next, now + kAcknowledgeAfter);
  }
  return next;
}

// --- Links ----------------------------------------------------------------------------------------------------------

void MultirailTransport::linkChanged(int rail, bool isUp) {
  if (isLinkUp_[static_cast<size_t>(rail)] == isUp) return;
  isLinkUp_[static_cast<size_t>(rail)] = isUp;
  for (auto& [rank, peer] : peers_) {
    if (!peer.reachability.wasReached()) continue;
    std::erase(peer.linkStatesToSend, rail);
    peer.linkStatesToSend.push_back(rail);
    sendLinkStates(peer);
  }
}

void MultirailTransport::sendLinkStates(Peer& peer) {
  while (!peer.linkStatesToSend.empty()) {
    const int rail = peer.linkStatesToSend.back();
    wire::FrameHeader header;
    header.kind = wire::FrameKind::kLinkState;
    header.offset = static_cast<uint64_t>(rail);
    header.total = isLinkUp_[static_cast<size_t>(rail)] ? 1 : 0;
    if (!sendUnnumbered(peer, header)) return;
    std::erase(peer.linkStatesToSend, rail);
  }
}

// --- Receiving ------------------------------------------------------------------------------------------------------

std::span<std::byte> MultirailTransport::place(int rail, int rank, const wire::FrameHeader& header) {
  Peer& peer = peerOf(rank);
  if (!peer.acks.begin(rail, header) || isStale(peer, header)) return {};
  if (const std::optional<AckTracker::Copy> copy = peer.acks.takeEarlierCopy(header)) {
    rails_[static_cast<size_t>(copy->rail)]->cancelReceive(rank, copy->target);
  }
  const std::span<std::byte> target = sink_->place(rank, header);
  peer.acks.place(rail, header, target);
  return target;
}

void MultirailTransport::arrived(int rail, int rank, const wire::FrameHeader& header) {
  Peer& peer = peerOf(rank);
  const bool isPlaced = peer.acks.end(rail, header);
  if (isStale(peer, header)) return;
  peer.reachability.heard();
  takeAcknowledgement(peer, header.acknowledged);
  if (header.kind == wire::FrameKind::kLinkState) {
    for (const auto& own : rails_) own->peerLinkChanged(rank, header.offset, header.total != 0);
  }
  if (header.number == 0) return;
  if (!peer.acks.isWanted(header.number)) {
    ++counters_.numDuplicates;
    peer.acks.duplicateSeen(header.number);
    return acknowledge(peer);
  }
  if (!isPlaced) return;  // a later copy is arriving on another rail
  counters_.rails[static_cast<size_t>(rail)].numBytesReceived += header.length;
  peer.acks.add(header);
  sink_->arrived(rank, header);
  // Check only now: if the sink has sent a frame in arrived(), this frame carried the acknowledgement.
  if (peer.acks.isDue()) acknowledgeSoon(peer);
}

bool MultirailTransport::isStale(const Peer& peer, const wire::FrameHeader& header) const {
  return header.epoch != options_.epoch || peer.reachability.isLost();
}

void MultirailTransport::takeAcknowledgement(Peer& peer, uint64_t acknowledged) {
  const uint64_t next = std::min(acknowledged, peer.window.end());
  const bool wasFull = peer.window.isFull();
  bool isAny = false;
  while (const std::optional<InFlightFrame> sent = peer.window.acknowledge(next)) {
    isAny = true;
    release(peer, *sent);
    sink_->acknowledged(peer.rank, sent->frame.token);
  }
  if (!isAny) return;
  peer.window.restartTimeout();
  if (wasFull) sink_->writable(peer.rank);
}

/// Cancels the frame on all rails that may still read its payload. A rail may still hold an earlier copy of the frame.
/// It may even hold the only copy, because a faulty peer may acknowledge frames that it has not received.
void MultirailTransport::release(const Peer& peer, const InFlightFrame& sent) {
  if (sent.frame.header.length == 0) return;
  const bool hasOneCopy = sent.rail != transport::kNoRail && sent.frame.header.attempt == 0;
  for (int i = 0; i < std::ssize(rails_); ++i) {
    transport::Rail& rail = *rails_[static_cast<size_t>(i)];
    const bool isWritten = hasOneCopy && (i != sent.rail || !rail.isReading(peer.rank));
    if (!isWritten) rail.cancelSend(peer.rank, sent.frame.token, sent.frame.payload);
  }
}

void MultirailTransport::cancelReceive(int rank, ByteView target) {
  Peer* peer = findPeer(rank);
  if (peer == nullptr) return;
  for (int rail = 0; rail < std::ssize(rails_); ++rail) {
    const ByteView cancelled = peer->acks.cancel(rail, target);
    if (!cancelled.empty()) rails_[static_cast<size_t>(rail)]->cancelReceive(rank, cancelled);
  }
}

// --- Reaching and losing a peer -------------------------------------------------------------------------------------

void MultirailTransport::writable(int rail, int rank) {
  Peer& peer = peerOf(rank);
  if (peer.reachability.isLost()) return;
  if (peer.reachability.railUp(static_cast<size_t>(rail))) peer.window.reclaim(rail);
  sendLinkStates(peer);
  resend(peer);
  if (peer.window.numToResend() == 0) sink_->writable(rank);
  if (peer.acks.isDue()) acknowledge(peer);
}

void MultirailTransport::lost(int rail, int rank, LossCause cause, const Status& status) {
  Peer& peer = peerOf(rank);
  if (peer.reachability.isLost()) return;
  const auto index = static_cast<size_t>(rail);
  const io::Clock::time_point now = io::Clock::now();
  if (peer.reachability.railDown(index, cause, status.message(), now)) {
    ++counters_.rails[index].numLosses;
    if (cause == LossCause::kStalled) ++counters_.rails[index].numStalls;
  }
  if (cause == LossCause::kIncompatible) return markLost(peer, cause, status);
  if (names_.areLogged()) AG_LOG(kInfo, "{} ({})", status.message(), toString(cause));
  if (cause == LossCause::kUnpaired) return;
  peer.window.markLost(rail, cause == LossCause::kStalled);
  peer.acks.ackMayBeLost();
  if (!peer.reachability.isReached()) return checkReachability(peer, now);
  resend(peer);
  // A sink that has waited for room on this rail can use another rail now.
  if (canSend(peer)) sink_->writable(rank);
}

void MultirailTransport::checkReachability(Peer& peer, io::Clock::time_point now) {
  if (!peer.reachability.isSought()) return;
  const auto lostBecause = [&](const std::string& why) {
    return unavailable("{} is lost to {}: {} (last: {})", names_.of(peer.rank), names_.of(options_.rank), why,
                       peer.reachability.lastFailure());
  };
  const auto downMs = [&] { return peer.reachability.downFor(now).count(); };
  switch (peer.reachability.check(now, mayStillReceive(peer.rank), options_.timeouts)) {
    case Reachability::Verdict::kFine: return;
    case Reachability::Verdict::kWarn:
      if (!names_.areLogged()) return;
      AG_LOG(kWarn, "{}: no rail has led to {} for {} ms ({}); it keeps trying", names_.of(options_.rank),
             names_.of(peer.rank), downMs(), peer.reachability.lastFailure());
      return;
    case Reachability::Verdict::kEnded:
      return markLost(peer, LossCause::kRefused, lostBecause("its process has ended: its address refuses connections"));
    case Reachability::Verdict::kUnreachable:
      return markLost(peer, LossCause::kUnreachable,
                      lostBecause(formatText("no rail has led to it for {} ms", downMs())));
  }
}

void MultirailTransport::markLost(Peer& peer, LossCause cause, const Status& status) {
  peer.reachability.markLost();
  peer.window.clear();
  for (const auto& rail : rails_) rail->disconnect(peer.rank);
  sink_->lost(peer.rank, cause, status);
}

}  // namespace agspeed::comm::multirail
