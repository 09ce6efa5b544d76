// SPDX-License-Identifier: Apache-2.0
#include "comm/transport/multirail/multirail_transport.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/log.h"

namespace agspeed::comm {
namespace {

using std::chrono::milliseconds;

constexpr uint64_t kMaxBytesDue = 256 * 1024;
/// A slow rail is used as long as a frame takes less than this share's inverse of what it takes on a quick one: at a
/// tenth of the others' rate it carries a frame at a time.
constexpr double kMuchSooner = 0.6;
constexpr double kLongSeconds = 4e-3;  ///< shorter delays are told from each other too badly to wait by them
/// Payloads that several rails share well, and the longest ones: what comes after a frame waits for it, so none takes
/// longer than that on any rail; and rails of which one takes so many times longer than another get shorter ones.
constexpr uint32_t kSharedBytes = 16 * 1024, kLongBytes = 128 * 1024, kUnlikeBytes = 64 * 1024;
constexpr double kLongestSeconds = 8e-3, kAlike = 2;
constexpr Clock::duration kAcknowledgeAfter = milliseconds(20);
constexpr Clock::duration kIdleTick = milliseconds(1000);
constexpr Clock::duration kWarnAfter = milliseconds(500);
/// What a process sent before it ended may still stand in this kernel: it is read between ticks.
constexpr int kQuietTicks = 3;
/// For rails that lose frames without saying so: when a frame counts as lost, doubled each time.
constexpr Clock::duration kFirstResend = milliseconds(30);
constexpr Clock::duration kLongestResend = milliseconds(2000);

}  // namespace

std::string_view toString(LossCause cause) {
  switch (cause) {
    case LossCause::kClosed: return "closed";
    case LossCause::kRefused: return "refused";
    case LossCause::kCorrupted: return "corrupted";
    case LossCause::kStalled: return "stalled";
    case LossCause::kSilent: return "silent";
    case LossCause::kUnreachable: return "unreachable";
    case LossCause::kUnpaired: return "unpaired";
    case LossCause::kIncompatible: return "incompatible";
  }
  return "unknown";
}

class MultirailTransport::RailSink final : public Transport::Sink {
 public:
  RailSink(MultirailTransport& striped, int rail) : multirail_(striped), rail_(rail) {}

  std::span<std::byte> place(int peer, const FrameHeader& header) override {
    return multirail_.place(rail_, peer, header);
  }
  void arrived(int peer, const FrameHeader& header) override { multirail_.arrived(rail_, peer, header); }
  void acknowledged(int, uint64_t) override {}
  void writable(int peer) override { multirail_.writable(rail_, peer); }
  void lost(int peer, LossCause cause, const Status& status) override { multirail_.lost(rail_, peer, cause, status); }

 private:
  MultirailTransport& multirail_;
  const int rail_;
};

MultirailTransport::MultirailTransport(std::vector<std::unique_ptr<Transport>> rails, MultirailOptions options)
    : rails_(std::move(rails)), options_(options) {
  AG_CHECK(!rails_.empty(), "no rail to stripe over");
  capabilities_ = rails_.front()->capabilities();
  for (size_t i = 0; i < rails_.size(); ++i) {
    const Capabilities& rail = rails_[i]->capabilities();
    capabilities_.isReliable = capabilities_.isReliable && rail.isReliable;
    capabilities_.segmentBytes = std::min(capabilities_.segmentBytes, rail.segmentBytes);
    capabilities_.maxPayloadBytes = std::min(capabilities_.maxPayloadBytes, rail.maxPayloadBytes);
    sinks_.push_back(std::make_unique<RailSink>(*this, static_cast<int>(i)));
    rails_[i]->attach(*sinks_.back());
  }
  capabilities_.maxPayloadBytes = std::min(capabilities_.maxPayloadBytes, kLongBytes);
  if (rails_.size() > 1) capabilities_.segmentBytes = kSharedBytes;
  capabilities_.isAcknowledging = true;
  counters_.rails.resize(rails_.size());
  hasCarrier_.resize(rails_.size(), true);
}

MultirailTransport::~MultirailTransport() = default;

MultirailTransport::Peer& MultirailTransport::peerOf(int rank) {
  const auto [entry, isNew] = peers_.try_emplace(rank);
  Peer& peer = entry->second;
  if (isNew) {
    peer.capabilities = capabilities_;
    peer.placements.resize(rails_.size());
    peer.causes.resize(rails_.size(), LossCause::kSilent);
    peer.isUp.resize(rails_.size());
    peer.resendAfter = kFirstResend;
    for (const auto& rail : rails_) rail->connect(rank);
  }
  return peer;
}

void MultirailTransport::connect(int peer) { peerOf(peer); }

const Transport::Capabilities& MultirailTransport::capabilitiesFor(int rank) const {
  const auto found = peers_.find(rank);
  return found == peers_.end() ? capabilities_ : found->second.capabilities;
}

uint32_t MultirailTransport::longestPayload(const Peer& peer, int rank) const {
  double least = std::numeric_limits<double>::max(), most = 0;
  for (size_t rail = 0; rail < rails_.size(); ++rail) {
    if (!peer.isUp[rail]) continue;
    const double seconds =
        rails_[rail]->deliverySeconds(rank, capabilities_.maxPayloadBytes) - rails_[rail]->deliverySeconds(rank, 0);
    least = std::min(least, seconds);
    most = std::max(most, seconds);
  }
  const uint32_t longest = capabilities_.maxPayloadBytes;
  const uint32_t limit = most > std::max(kAlike * least, kLongSeconds) ? std::min(longest, kUnlikeBytes) : longest;
  if (most <= kLongestSeconds) return limit;
  const auto soonThere = static_cast<uint32_t>(kLongestSeconds / most * longest);
  return std::clamp(soonThere, std::min(kSharedBytes, limit), limit);
}

bool MultirailTransport::canSend(int rank) const {
  const auto found = peers_.find(rank);
  if (found == peers_.end() || found->second.stage == Stage::kDead) return false;
  const Peer& peer = found->second;
  return peer.numToResend == 0 && peer.outstanding.size() < ReceiveWindow::kFrames &&
         std::any_of(
             rails_.begin(), rails_.end(), [&](const auto& rail) { return rail->canSend(rank); }) &&
         !isFullOneWorthWaitingFor(peer, rank);
}

bool MultirailTransport::isFullOneWorthWaitingFor(const Peer& peer, int rank) const {
  const auto isFull = [&](size_t rail) { return peer.isUp[rail] && !rails_[rail]->canSend(rank); };
  double soonest = std::numeric_limits<double>::max(), soonestOfFull = soonest;
  bool isAnyFull = false;
  for (size_t rail = 0; rail < rails_.size(); ++rail) isAnyFull = isAnyFull || isFull(rail);
  if (!isAnyFull) return false;
  for (size_t rail = 0; rail < rails_.size(); ++rail) {
    if (!peer.isUp[rail]) continue;
    double& least = isFull(rail) ? soonestOfFull : soonest;
    least = std::min(least, rails_[rail]->deliverySeconds(rank, capabilities_.segmentBytes));
  }
  return soonest > kLongSeconds && soonestOfFull < kMuchSooner * soonest;
}

double MultirailTransport::coalesceSeconds(int rank) const {
  const auto found = peers_.find(rank);
  if (found == peers_.end() || !found->second.isReached()) return 0;
  double least = std::numeric_limits<double>::max();
  for (size_t rail = 0; rail < rails_.size(); ++rail) {
    if (found->second.isUp[rail]) least = std::min(least, rails_[rail]->coalesceSeconds(rank));
  }
  return least;
}

int MultirailTransport::chooseRail(const Peer& peer, int rank, size_t size) const {
  int best = kNoRail;
  double bestDelay = 0;
  for (size_t i = 0; i < rails_.size(); ++i) {
    const size_t rail = (peer.turn + i) % rails_.size();
    if (!rails_[rail]->canSend(rank)) continue;
    if (rails_.size() == 1) return static_cast<int>(rail);
    const double delay = rails_[rail]->deliverySeconds(rank, size);
    if (best == kNoRail || delay < bestDelay) {
      best = static_cast<int>(rail);
      bestDelay = delay;
    }
  }
  return best;
}

void MultirailTransport::send(int rank, const OutgoingFrame& frame) {
  Peer& peer = peerOf(rank);
  const int rail = chooseRail(peer, rank, frame.payload.size());
  AG_CHECK(rail != kNoRail, "send() without canSend()");
  InFlightFrame& outstanding = peer.outstanding.emplace_back(InFlightFrame{frame, kNoRail, {}});
  outstanding.frame.header.number = peer.firstNumber + peer.outstanding.size() - 1;
  outstanding.frame.header.epoch = options_.epoch;
  transmit(rank, peer, outstanding, rail);
}

void MultirailTransport::transmit(int rank, Peer& peer, InFlightFrame& outstanding, int rail) {
  const auto index = static_cast<size_t>(rail);
  outstanding.rail = rail;
  outstanding.stalled = kNoRail;
  // Only rails that lose frames silently are watched by time.
  if (!capabilities_.isReliable) outstanding.sentAt = Clock::now();
  outstanding.frame.header.acknowledged = peer.received.next();
  peer.acknowledged = peer.received.next();
  peer.firstDue = peer.lastDue >= peer.acknowledged ? peer.lastDue : 0;
  peer.bytesDue = 0;
  peer.turn = (index + 1) % rails_.size();
  ++counters_.rails[index].numFrames;
  counters_.rails[index].numBytes += outstanding.frame.payload.size();
  // A copy: the rail may be lost within the call, and its frames then change.
  const OutgoingFrame frame = outstanding.frame;
  rails_[index]->send(rank, frame);
}

void MultirailTransport::resend(int rank, Peer& peer) {
  for (size_t i = 0; i < peer.outstanding.size() && peer.numToResend > 0; ++i) {
    InFlightFrame& outstanding = peer.outstanding[i];
    if (outstanding.rail != kNoRail) continue;
    const int rail = chooseRail(peer, rank, outstanding.frame.payload.size());
    if (rail == kNoRail) return;
    --peer.numToResend;
    ++counters_.numResent;
    ++outstanding.frame.header.attempt;
    transmit(rank, peer, outstanding, rail);
  }
}

void MultirailTransport::cancelReceive(int rank, ByteView target) {
  const auto found = peers_.find(rank);
  if (found == peers_.end()) return;
  for (size_t rail = 0; rail < rails_.size(); ++rail) {
    Placement& placement = found->second.placements[rail];
    if (!overlaps(placement.target, target)) continue;
    rails_[rail]->cancelReceive(rank, placement.target);
    placement.target = {};  // its number still counts when it has arrived
  }
}

void MultirailTransport::cancelSend(int rank, uint64_t token, ByteView payload) {
  const auto found = peers_.find(rank);
  if (found == peers_.end()) return;
  for (const auto& rail : rails_) rail->cancelSend(rank, token, payload);
  for (InFlightFrame& outstanding : found->second.outstanding) {
    OutgoingFrame& frame = outstanding.frame;
    if (frame.token != token || !overlaps(frame.payload, payload)) continue;
    // The number must still arrive, or nothing after it could be acknowledged.
    frame.header.kind = FrameKind::kVoid;
    frame.header.length = 0;
    frame.payload = {};
  }
}

bool MultirailTransport::isFlushed() const {
  return std::all_of(rails_.begin(), rails_.end(), [](const auto& rail) { return rail->isFlushed(); }) &&
         std::all_of(peers_.begin(), peers_.end(), [](const auto& entry) {
           const Peer& peer = entry.second;
           return peer.stage == Stage::kDead ||
                  (peer.numToResend == 0 && !(isAcknowledgementDue(peer) && peer.isReached()));
         });
}

std::string MultirailTransport::route(int peer) const {
  std::string text;
  for (const auto& rail : rails_) {
    const std::string route = rail->route(peer);
    if (!route.empty()) text += (text.empty() ? "" : ", ") + route;
  }
  return text;
}

bool MultirailTransport::mayStillReceive(int peer) const {
  return std::any_of(rails_.begin(), rails_.end(), [&](const auto& rail) { return rail->mayStillReceive(peer); });
}

Clock::time_point MultirailTransport::tick(Clock::time_point now) {
  Clock::time_point next = now + kIdleTick;
  for (const auto& rail : rails_) next = std::min(next, rail->tick(now));
  for (auto& [rank, peer] : peers_) {
    if (peer.stage == Stage::kDead) continue;
    ++peer.numQuietTicks;
    if (rails_.size() > 1 && !peer.outstanding.empty()) {
      peer.capabilities.maxPayloadBytes = longestPayload(peer, rank);
    }
    judge(rank, peer, now);
    if (!capabilities_.isReliable) retransmitExpired(rank, peer, now);
    if (peer.received.next() > peer.acknowledged) acknowledge(rank, peer);
    // The rail that was waited for may be gone; what it carried is not acknowledged.
    if (rails_.size() > 1 && !peer.outstanding.empty() && canSend(rank)) sink_->writable(rank);
    const bool isBusy = !peer.outstanding.empty() || peer.received.next() > peer.acknowledged;
    if (isBusy || peer.downSince != Clock::time_point()) next = std::min(next, now + kAcknowledgeAfter);
  }
  return next;
}

void MultirailTransport::acknowledge(int rank, Peer& peer) {
  FrameHeader header;
  header.kind = FrameKind::kAck;
  if (sendUncounted(rank, peer, header)) ++counters_.numAcks;
}

void MultirailTransport::linkChanged(int rail, bool hasCarrier) {
  if (hasCarrier_[static_cast<size_t>(rail)] == hasCarrier) return;
  hasCarrier_[static_cast<size_t>(rail)] = hasCarrier;
  for (auto& [rank, peer] : peers_) {
    if (peer.stage != Stage::kAlive) continue;
    std::erase(peer.carriersToTell, rail);
    peer.carriersToTell.push_back(rail);
    tellLinkStates(rank, peer);
  }
}

void MultirailTransport::tellLinkStates(int rank, Peer& peer) {
  while (!peer.carriersToTell.empty()) {
    const int rail = peer.carriersToTell.back();
    FrameHeader header;
    header.kind = FrameKind::kLinkState;
    header.offset = static_cast<uint64_t>(rail);
    header.total = hasCarrier_[static_cast<size_t>(rail)] ? 1 : 0;
    if (!sendUncounted(rank, peer, header)) return;
    std::erase(peer.carriersToTell, rail);
  }
}

bool MultirailTransport::sendUncounted(int rank, Peer& peer, FrameHeader header) {
  const int rail = chooseRail(peer, rank, 0);
  if (rail == kNoRail) return false;
  header.epoch = options_.epoch;
  InFlightFrame frame;
  frame.frame.header = header;
  transmit(rank, peer, frame, rail);
  return true;
}

void MultirailTransport::judge(int rank, Peer& peer, Clock::time_point now) {
  if (peer.isReached() || peer.downSince == Clock::time_point()) return;
  const auto count = [&](LossCause cause) { return std::count(peer.causes.begin(), peer.causes.end(), cause); };
  const auto numPaired = std::ssize(peer.causes) - count(LossCause::kUnpaired);
  const auto lostBecause = [&](const std::string& why) {
    return unavailable("rank {} is lost to rank {}: {} (last: {})", rank, options_.rank, why, peer.lastFailure);
  };
  const bool hasRefused = count(LossCause::kRefused) == numPaired;
  if (hasRefused && !mayStillReceive(rank) && peer.numQuietTicks >= kQuietTicks) {
    const std::string why = "its process has ended: nobody listens there any more";
    return giveUp(rank, peer, LossCause::kRefused, lostBecause(why));
  }
  const Clock::duration gone = now - peer.downSince;
  // Somebody who does not greet or closes handshakes may be busy; an address where nobody is at all is known to be
  // wrong sooner.
  const bool isNobodyThere = peer.stage == Stage::kNew && !peer.wasFound &&
                             count(LossCause::kUnreachable) + count(LossCause::kRefused) == numPaired;
  const Clock::duration limit = isNobodyThere ? options_.connectTimeout : options_.peerTimeout;
  const std::string seconds = formatText("{} ms", std::chrono::duration_cast<milliseconds>(gone).count());
  if (gone > limit) {
    return giveUp(rank, peer, LossCause::kUnreachable, lostBecause("no rail has led to it for " + seconds));
  }
  if (gone > kWarnAfter && !peer.isWarned) {
    peer.isWarned = true;
    AG_LOG(kWarn, "rank {}: no rail leads to rank {} for {} ({}); trying on", options_.rank, rank, seconds,
           peer.lastFailure);
  }
}

void MultirailTransport::giveUp(int rank, Peer& peer, LossCause cause, const Status& status) {
  peer.stage = Stage::kDead;
  peer.outstanding.clear();
  peer.numToResend = 0;
  for (const auto& rail : rails_) rail->disconnect(rank);
  sink_->lost(rank, cause, status);
}

void MultirailTransport::retransmitExpired(int rank, Peer& peer, Clock::time_point now) {
  bool isLate = false;
  for (InFlightFrame& outstanding : peer.outstanding) {
    if (outstanding.rail == kNoRail || now - outstanding.sentAt < peer.resendAfter) continue;
    isLate = true;
    outstanding.rail = kNoRail;
    ++peer.numToResend;
  }
  if (isLate) peer.resendAfter = std::min(2 * peer.resendAfter, kLongestResend);
  resend(rank, peer);
}

std::span<std::byte> MultirailTransport::place(int rail, int rank, const FrameHeader& header) {
  Peer& peer = peerOf(rank);
  Placement& placement = peer.placements[static_cast<size_t>(rail)];
  placement = {};
  const bool isWanted = header.epoch == options_.epoch && peer.received.isWanted(header.number);
  if (!isWanted || peer.stage == Stage::kDead) return {};
  // Of two copies that arrive at once the later attempt counts: its sender has given up the connection of the other,
  // which may end at any byte. What is left of that copy must not be written any more.
  for (size_t other = 0; other < rails_.size(); ++other) {
    if (peer.placements[other].number != header.number) continue;
    if (peer.placements[other].attempt > header.attempt) return {};
    rails_[other]->cancelReceive(rank, peer.placements[other].target);
    peer.placements[other] = {};
  }
  const std::span<std::byte> target = sink_->place(rank, header);
  placement = {header.number, header.attempt, target};
  return target;
}

void MultirailTransport::arrived(int rail, int rank, const FrameHeader& header) {
  Peer& peer = peerOf(rank);
  Placement& placement = peer.placements[static_cast<size_t>(rail)];
  const bool isPlaced = header.length == 0 || placement.number == header.number;
  placement = {};
  if (header.epoch != options_.epoch || peer.stage == Stage::kDead) return;
  peer.numQuietTicks = 0;
  takeAcknowledgement(rank, peer, header.acknowledged);
  if (header.kind == FrameKind::kLinkState) {
    for (const auto& own : rails_) own->peerLinkChanged(rank, header.offset, header.total != 0);
  }
  if (header.number == 0) return;
  if (!peer.received.isWanted(header.number)) {
    ++counters_.numDuplicates;
    peer.bytesDue += kMaxBytesDue;  // its sender has not heard of it
    return acknowledge(rank, peer);
  }
  if (!isPlaced) return;  // a later attempt is on its way
  counters_.rails[static_cast<size_t>(rail)].numBytesReceived += header.length;
  countIn(peer, header);
  sink_->arrived(rank, header);
  // What the sink has sent meanwhile carried the acknowledgement.
  if (isAcknowledgementDue(peer)) acknowledge(rank, peer);
}

void MultirailTransport::countIn(Peer& peer, const FrameHeader& header) {
  peer.received.add(header.number);
  peer.bytesDue += header.length;
  if (header.total >= kZeroCopyBytes && header.offset + header.length == header.total) {
    peer.lastDue = std::max(peer.lastDue, header.number);
    if (peer.firstDue == 0) peer.firstDue = header.number;
  }
}

bool MultirailTransport::isAcknowledgementDue(const Peer& peer) {
  const bool isSomebodyWaiting = peer.firstDue != 0 && peer.received.next() > peer.firstDue;
  return peer.received.next() > peer.acknowledged && (isSomebodyWaiting || peer.bytesDue >= kMaxBytesDue);
}

void MultirailTransport::cancelSend(int rank, const InFlightFrame& frame) {
  if (frame.frame.header.length == 0) return;
  const bool hasOneCopy = frame.rail != kNoRail && frame.frame.header.attempt == 0;
  for (int i = 0; i < std::ssize(rails_); ++i) {
    Transport& rail = *rails_[static_cast<size_t>(i)];
    const bool isWritten = hasOneCopy && (i != frame.rail || rail.canSend(rank));
    if (!isWritten) rail.cancelSend(rank, frame.frame.token, frame.frame.payload);
  }
}

void MultirailTransport::takeAcknowledgement(int rank, Peer& peer, uint64_t acknowledged) {
  const uint64_t end = std::min(acknowledged, peer.firstNumber + peer.outstanding.size());
  if (peer.firstNumber >= end) return;
  const bool wasFull = peer.outstanding.size() >= ReceiveWindow::kFrames;
  while (peer.firstNumber < end) {
    const InFlightFrame outstanding = std::move(peer.outstanding.front());
    peer.outstanding.pop_front();
    ++peer.firstNumber;
    if (outstanding.rail == kNoRail) --peer.numToResend;
    // A rail may still hold an earlier copy, or the only one: what a peer acknowledges it need not have received.
    cancelSend(rank, outstanding);
    sink_->acknowledged(rank, outstanding.frame.token);
  }
  peer.resendAfter = kFirstResend;
  if (wasFull) sink_->writable(rank);
}

void MultirailTransport::writable(int rail, int rank) {
  Peer& peer = peerOf(rank);
  if (peer.stage == Stage::kDead) return;
  peer.stage = Stage::kAlive;
  peer.downSince = {};
  peer.isWarned = false;
  if (!peer.isUp[static_cast<size_t>(rail)]) reclaim(peer, rail);
  peer.isUp[static_cast<size_t>(rail)] = true;
  tellLinkStates(rank, peer);
  resend(rank, peer);
  if (peer.numToResend == 0) sink_->writable(rank);
  if (isAcknowledgementDue(peer)) acknowledge(rank, peer);
}

/// A rail is up again: what it carried when it stalled and nothing else has carried since is its own.
void MultirailTransport::reclaim(Peer& peer, int rail) {
  for (InFlightFrame& outstanding : peer.outstanding) {
    if (outstanding.stalled != rail) continue;
    outstanding.rail = std::exchange(outstanding.stalled, kNoRail);
    --peer.numToResend;
  }
}

void MultirailTransport::lost(int rail, int rank, LossCause cause, const Status& status) {
  Peer& peer = peerOf(rank);
  if (peer.stage == Stage::kDead) return;
  const auto index = static_cast<size_t>(rail);
  if (peer.isUp[index]) {
    ++counters_.rails[index].numLosses;
    if (cause == LossCause::kStalled) ++counters_.rails[index].numStalls;
  }
  peer.isUp[index] = false;
  peer.causes[index] = cause;
  if (cause == LossCause::kIncompatible) return giveUp(rank, peer, cause, status);
  AG_LOG(kInfo, status.message() + " (" + std::string(toString(cause)) + ")");
  if (cause == LossCause::kUnpaired) return;  // others tell whether the peer is there
  if (cause != LossCause::kUnreachable && cause != LossCause::kRefused) peer.wasFound = true;
  peer.lastFailure = status.message();
  for (InFlightFrame& outstanding : peer.outstanding) {
    if (outstanding.stalled == rail) outstanding.stalled = kNoRail;
    if (outstanding.rail != rail) continue;
    outstanding.rail = kNoRail;
    outstanding.stalled = cause == LossCause::kStalled ? rail : kNoRail;
    ++peer.numToResend;
  }
  // An acknowledgement may have been on it.
  peer.acknowledged = 1;
  peer.firstDue = peer.lastDue;
  if (peer.isReached()) {
    resend(rank, peer);
    // Nobody waits for this rail any more.
    if (canSend(rank)) sink_->writable(rank);
    return;
  }
  const Clock::time_point now = Clock::now();
  if (peer.downSince == Clock::time_point()) {
    peer.downSince = now;
    peer.numQuietTicks = 0;
  }
  judge(rank, peer, now);
}

}  // namespace agspeed::comm
