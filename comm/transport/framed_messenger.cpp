// SPDX-License-Identifier: Apache-2.0
#include "comm/transport/framed_messenger.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "runtime/base/check.h"
#include "runtime/base/log.h"

namespace agspeed::comm {
namespace {

using std::chrono::milliseconds;

constexpr Clock::duration kFlushTimeout = milliseconds(1000);
/// What the bookkeeping of a message counts as, so that empty ones are bounded too.
constexpr uint64_t kMessageCost = 64;
/// While something happens timers are looked at this often.
constexpr Clock::duration kBusyTick = milliseconds(10);
/// A message is cut into about this many pieces, within the transport's bounds.
constexpr uint64_t kSegmentsPerMessage = 64;

std::string inMilliseconds(Clock::duration duration) {
  return std::to_string(std::chrono::duration_cast<milliseconds>(duration).count()) + " ms";
}

std::string describe(const MessageId& id) {
  return "communicator " + std::to_string(id.communicator) + ", sequence " + std::to_string(id.sequence) + ", step " +
         std::to_string(id.step);
}

}  // namespace

FramedMessenger::FramedMessenger(int rank, int size, std::unique_ptr<Transport> transport, Poller& poller,
                                 Clock::duration peerTimeout)
    : rank_(rank), size_(size), transport_(std::move(transport)), poller_(poller), peerTimeout_(peerTimeout) {
  AG_CHECK(transport_->capabilities().isAcknowledging, "messages need a transport that acknowledges");
  transport_->attach(*this);
}

FramedMessenger::~FramedMessenger() {
  // What belongs to callers is not touched any more; what was copied still leaves.
  for (auto& [rank, peer] : peers_) {
    peer.large.clear();
    for (Outgoing* message : peer.outgoing) {
      if (message->transfer != nullptr) transport_->abandon(rank, message->bytes);
    }
    for (auto& [id, message] : peer.incoming) {
      if (message.transfer != nullptr) transport_->abandon(rank, message.transfer->bytes);
      message.transfer = nullptr;
    }
  }
  const auto isDone = [&] {
    return transport_->isFlushed() && std::all_of(peers_.begin(), peers_.end(), [](const auto& entry) {
             return entry.second.small.empty() || !entry.second.failure;
           });
  };
  const Clock::time_point limit = Clock::now() + kFlushTimeout;
  transport_->tick(Clock::now());
  while (!isDone() && Clock::now() < limit) {
    poller_.wait(Clock::now() + milliseconds(5));
    transport_->tick(Clock::now());
  }
  for (auto& [rank, peer] : peers_) {
    for (Outgoing* message : peer.outgoing) delete message;
  }
}

FramedMessenger::Peer& FramedMessenger::peerOf(int peer) {
  const auto [entry, isNew] = peers_.try_emplace(peer);
  if (isNew) {
    transport_->connect(peer);
    nextTick_ = {};
  }
  return entry->second;
}

uint64_t FramedMessenger::segmentBytes(int rank, uint64_t total) const {
  const Transport::Capabilities& can = transport_->capabilitiesFor(rank);
  return std::clamp<uint64_t>(total / kSegmentsPerMessage, can.segmentBytes, can.maxPayloadBytes);
}

// --- Sending --------------------------------------------------------------------------------------------------------

void FramedMessenger::send(Transfer& transfer) {
  AG_CHECK(transfer.peer >= 0 && transfer.peer < size_ && transfer.peer != rank_, std::to_string(transfer.peer));
  Peer& peer = peerOf(transfer.peer);
  Transfer* pending = &transfer;
  if (!peer.failure) {
    finish(pending, peer.failure);
    tellFinished();
    return;
  }
  auto message = std::make_unique<Outgoing>();
  message->id = transfer.id;
  message->bytes = transfer.bytes;
  const uint64_t total = transfer.bytes.size();
  const uint64_t cost = total + kMessageCost;
  if (total < kLargeBytes && peer.eagerSent - peer.eagerConsumedThere + cost <= kEagerWindowBytes) {
    peer.eagerSent += cost;
    message->kind = FrameKind::kEager;
    message->copy.assign(transfer.bytes.begin(), transfer.bytes.end());
    message->bytes = message->copy;
    start(peer, std::move(message), peer.small);
    finish(pending, {});
  } else if (const auto asked = peer.asked.find(transfer.id); asked != peer.asked.end()) {
    const uint64_t expected = asked->second;
    peer.asked.erase(asked);
    message->transfer = pending;
    if (expected == total) {
      start(peer, std::move(message), peer.large);
    } else {
      peer.control.push_back({FrameKind::kAnnounce, transfer.id, total});
      finish(message->transfer,
             invalidArgument("rank " + std::to_string(transfer.peer) + " expects " + std::to_string(expected) +
                             " bytes, rank " + std::to_string(rank_) + " sends " + std::to_string(total) + " (" +
                             describe(transfer.id) + ")"));
    }
  } else {
    message->transfer = pending;
    peer.control.push_back({FrameKind::kAnnounce, transfer.id, total});
    peer.unasked.emplace(transfer.id, std::move(message));
  }
  pump(transfer.peer);
  tellFinished();
}

void FramedMessenger::start(Peer& peer, std::unique_ptr<Outgoing> message, std::deque<Outgoing*>& queue) {
  queue.push_back(message.get());
  peer.outgoing.insert(message.release());
}

void FramedMessenger::pump(int rank) {
  Peer& peer = peerOf(rank);
  // What is sent must be watched over, and what is waited for.
  nextTick_ = std::min(nextTick_, tickedAt_ + kBusyTick);
  nextLook_ = std::min(nextLook_, tickedAt_ + Pulse::kInterval);
  while (peer.failure && transport_->canSend(rank)) {
    if (!peer.control.empty()) {
      const Control control = peer.control.front();
      peer.control.pop_front();
      OutgoingFrame frame;
      frame.header.kind = control.kind;
      frame.header.id = control.id;
      frame.header.total = control.total;
      frame.header.consumed = peer.eagerConsumed;
      transport_->send(rank, frame);
    } else if (!peer.small.empty()) {
      sendSegment(rank, peer, peer.small);
    } else if (!peer.large.empty()) {
      sendSegment(rank, peer, peer.large);
    } else {
      return;
    }
  }
}

void FramedMessenger::sendSegment(int rank, Peer& peer, std::deque<Outgoing*>& queue) {
  Outgoing& message = *queue.front();
  const uint64_t total = message.bytes.size();
  OutgoingFrame frame;
  frame.header.kind = message.kind;
  frame.header.id = message.id;
  frame.header.total = total;
  frame.header.offset = message.numSent;
  frame.header.length = static_cast<uint32_t>(std::min(segmentBytes(rank, total), total - message.numSent));
  frame.header.consumed = peer.eagerConsumed;
  peer.eagerConsumedTold = peer.eagerConsumed;
  frame.payload = message.bytes.subspan(message.numSent, frame.header.length);
  frame.token = reinterpret_cast<uintptr_t>(&message);
  message.numSent += frame.header.length;
  ++message.numUnacknowledged;
  if (message.numSent == total) {
    message.isWhollySent = true;
    queue.pop_front();
  }
  transport_->send(rank, frame);
}

void FramedMessenger::acknowledged(int rank, uint64_t token) {
  Peer& peer = peerOf(rank);
  peer.pulse.heard();
  if (token == 0 || !peer.failure) return;
  auto* message = reinterpret_cast<Outgoing*>(static_cast<uintptr_t>(token));
  --message->numUnacknowledged;
  if (!message->isWhollySent || message->numUnacknowledged > 0) return;
  if (message->transfer != nullptr) finish(message->transfer, {});
  release(peer, message);
}

void FramedMessenger::release(Peer& peer, Outgoing* message) {
  peer.outgoing.erase(message);
  delete message;
}

void FramedMessenger::arrivedReady(int rank, Peer& peer, const FrameHeader& header) {
  const auto found = peer.unasked.find(header.id);
  if (found == peer.unasked.end()) {
    peer.asked[header.id] = header.total;
    return;
  }
  std::unique_ptr<Outgoing> message = std::move(found->second);
  peer.unasked.erase(found);
  if (header.total == message->bytes.size()) {
    start(peer, std::move(message), peer.large);
  } else {
    // The receiver learns the same from the announcement.
    finish(message->transfer,
           invalidArgument("rank " + std::to_string(rank) + " expects " + std::to_string(header.total) +
                           " bytes, rank " + std::to_string(rank_) + " sends " + std::to_string(message->bytes.size()) +
                           " (" + describe(header.id) + ")"));
  }
}

// --- Receiving ------------------------------------------------------------------------------------------------------

void FramedMessenger::receive(Transfer& transfer) {
  AG_CHECK(transfer.peer >= 0 && transfer.peer < size_ && transfer.peer != rank_, std::to_string(transfer.peer));
  Peer& peer = peerOf(transfer.peer);
  Transfer* pending = &transfer;
  // What arrived whole before the peer was lost is still there.
  if (!peer.failure && !peer.incoming.contains(transfer.id)) {
    finish(pending, peer.failure);
    tellFinished();
    return;
  }
  const auto [entry, isNew] = peer.incoming.try_emplace(transfer.id);
  Incoming& message = entry->second;
  if (isNew) {
    message.transfer = pending;
    message.total = transfer.bytes.size();
    const auto announced = peer.announced.find(transfer.id);
    const bool isAnnounced = announced != peer.announced.end();
    const uint64_t length = isAnnounced ? announced->second : message.total;
    if (isAnnounced) peer.announced.erase(announced);
    if (isAnnounced || message.total >= kLargeBytes) ask(peer, transfer.id, message);
    if (length != message.total) {
      failLength(transfer, length);
      peer.incoming.erase(entry);
    }
  } else if (message.total != transfer.bytes.size()) {
    failLength(transfer, message.total);
    if (message.numReceived < message.total) peer.discarded[transfer.id] = message.total - message.numReceived;
    consume(peer, message.total);
    peer.incoming.erase(entry);
  } else if (message.numReceived == message.total) {
    std::copy(message.buffer.begin(), message.buffer.end(), transfer.bytes.begin());
    consume(peer, message.total);
    peer.incoming.erase(entry);
    finish(pending, {});
  } else {
    message.transfer = pending;
  }
  pump(transfer.peer);
  tellFinished();
}

void FramedMessenger::ask(Peer& peer, const MessageId& id, Incoming& message) {
  if (std::exchange(message.isAsked, true)) return;
  peer.control.push_back({FrameKind::kReady, id, message.total});
}

void FramedMessenger::failLength(Transfer& transfer, uint64_t received) {
  Transfer* pending = &transfer;
  finish(pending,
         invalidArgument("rank " + std::to_string(rank_) + " expected " + std::to_string(transfer.bytes.size()) +
                         " bytes from rank " + std::to_string(transfer.peer) + ", which sent " +
                         std::to_string(received) + " (" + describe(transfer.id) + ")"));
}

void FramedMessenger::consume(Peer& peer, uint64_t total) {
  peer.eagerConsumed += total + kMessageCost;
  if (peer.eagerConsumed - peer.eagerConsumedTold < kEagerWindowBytes / 4) return;
  peer.eagerConsumedTold = peer.eagerConsumed;
  peer.control.push_back({FrameKind::kCredit, {}, 0});
}

std::span<std::byte> FramedMessenger::place(int rank, const FrameHeader& header) {
  Peer& peer = peerOf(rank);
  peer.pulse.heard();
  if (!peer.failure) return {};
  auto found = peer.incoming.find(header.id);
  if (found == peer.incoming.end()) {
    const bool isKept =
        header.kind == FrameKind::kEager && header.total < kLargeBytes && !peer.discarded.contains(header.id);
    if (!isKept) return {};
    found = peer.incoming.try_emplace(header.id).first;
    found->second.total = header.total;
    found->second.isBuffered = true;
    found->second.buffer.resize(header.total);
  }
  Incoming& message = found->second;
  if (message.total != header.total) return {};
  const std::span<std::byte> whole = message.isBuffered ? std::span(message.buffer) : message.transfer->bytes;
  return whole.subspan(header.offset, header.length);
}

void FramedMessenger::arrived(int rank, const FrameHeader& header) {
  Peer& peer = peerOf(rank);
  peer.pulse.heard();
  if (!peer.failure) {
    // It may have been stopped for long and not know.
    if (header.kind == FrameKind::kPing && transport_->canSend(rank)) {
      OutgoingFrame frame;
      frame.header.kind = FrameKind::kGone;
      transport_->send(rank, frame);
    }
    return;
  }
  peer.eagerConsumedThere = std::max(peer.eagerConsumedThere, header.consumed);
  switch (header.kind) {
    case FrameKind::kData:
    case FrameKind::kEager: arrivedData(rank, peer, header); break;
    case FrameKind::kAnnounce: arrivedAnnounce(peer, header); break;
    case FrameKind::kReady: arrivedReady(rank, peer, header); break;
    case FrameKind::kPing: peer.control.push_back({FrameKind::kPong, {}, 0}); break;
    case FrameKind::kGone: return lose(rank, "it has given this rank up, which was silent for too long");
    case FrameKind::kCredit:
    case FrameKind::kPong:
    case FrameKind::kVoid:
    case FrameKind::kAck: break;
  }
  if (!peer.control.empty() || !peer.large.empty()) pump(rank);
}

void FramedMessenger::arrivedData(int rank, Peer& peer, const FrameHeader& header) {
  if (header.length == 0) (void)place(rank, header);  // an empty message has no payload to place
  const auto found = peer.incoming.find(header.id);
  if (found == peer.incoming.end()) return discard(peer, header);
  Incoming& message = found->second;
  if (message.total != header.total) {
    if (message.transfer == nullptr) return;  // a name used twice
    failLength(*message.transfer, header.total);
    peer.incoming.erase(found);
    if (header.kind == FrameKind::kEager) {
      consume(peer, header.total);
      if (header.length < header.total) peer.discarded[header.id] = header.total - header.length;
    }
    return;
  }
  message.numReceived += header.length;
  if (message.numReceived < message.total || message.transfer == nullptr) return;
  if (message.isBuffered) std::copy(message.buffer.begin(), message.buffer.end(), message.transfer->bytes.begin());
  if (header.kind == FrameKind::kEager) consume(peer, message.total);
  finish(message.transfer, {});
  peer.incoming.erase(found);
}

void FramedMessenger::discard(Peer& peer, const FrameHeader& header) {
  const auto found = peer.discarded.find(header.id);
  if (found == peer.discarded.end()) return;
  if (found->second == kAllBytes) {
    if (header.kind == FrameKind::kEager) consume(peer, header.total);
    found->second = header.total;
  }
  found->second -= std::min<uint64_t>(found->second, header.length);
  if (found->second == 0) peer.discarded.erase(found);
}

void FramedMessenger::arrivedAnnounce(Peer& peer, const FrameHeader& header) {
  const auto found = peer.incoming.find(header.id);
  if (found == peer.incoming.end()) {
    if (peer.discarded.contains(header.id)) {
      // Asked for all the same, so that its sender is done with it.
      peer.control.push_back({FrameKind::kReady, header.id, header.total});
      peer.discarded[header.id] = std::max<uint64_t>(header.total, 1);
    } else {
      peer.announced[header.id] = header.total;
    }
  } else {
    ask(peer, header.id, found->second);
    if (found->second.total != header.total && found->second.transfer != nullptr) {
      failLength(*found->second.transfer, header.total);
      peer.incoming.erase(found);
    }
  }
}

// --- Ends -----------------------------------------------------------------------------------------------------------

void FramedMessenger::cancel(Transfer& transfer, const Status& reason) {
  Peer& peer = peerOf(transfer.peer);
  std::erase_if(finished_, [&](const auto& entry) { return entry.first == &transfer; });
  if (!cancelIncoming(peer, transfer)) (void)cancelOutgoing(peer, transfer);
  transfer.finished(reason);
}

bool FramedMessenger::cancelIncoming(Peer& peer, Transfer& transfer) {
  const auto found = peer.incoming.find(transfer.id);
  if (found == peer.incoming.end() || found->second.transfer != &transfer) return false;
  const Incoming& message = found->second;
  transport_->abandon(transfer.peer, transfer.bytes);
  if (message.isBuffered) consume(peer, message.total);
  peer.discarded[transfer.id] = message.numReceived > 0 ? message.total - message.numReceived : kAllBytes;
  peer.incoming.erase(found);
  return true;
}

Transfer* FramedMessenger::cancelOutgoing(Peer& peer, Transfer& transfer) {
  if (const auto found = peer.unasked.find(transfer.id);
      found != peer.unasked.end() && found->second->transfer == &transfer) {
    peer.unasked.erase(found);
    return &transfer;
  }
  const auto found = std::find_if(peer.outgoing.begin(), peer.outgoing.end(),
                                  [&](const Outgoing* message) { return message->transfer == &transfer; });
  if (found == peer.outgoing.end()) return nullptr;
  Outgoing* message = *found;
  transport_->abandon(transfer.peer, message->bytes);
  std::erase(peer.large, message);
  message->transfer = nullptr;
  message->isWhollySent = true;
  if (message->numUnacknowledged == 0) release(peer, message);
  return &transfer;
}

void FramedMessenger::lost(int rank, LossCause, const Status& status) {
  Peer& peer = peerOf(rank);
  peer.failure = status;
  ById<Incoming> whole;
  for (auto& [id, message] : peer.incoming) {
    if (message.transfer == nullptr) {
      if (message.numReceived == message.total) whole.emplace(id, std::move(message));
      continue;
    }
    transport_->abandon(rank, message.transfer->bytes);
    finish(message.transfer,
           status.withContext("receiving from rank " + std::to_string(rank) + " failed after " +
                              std::to_string(message.numReceived) + " of " + std::to_string(message.total) + " bytes"));
  }
  const auto failSend = [&](Outgoing& message) {
    transport_->abandon(rank, message.bytes);
    if (message.transfer == nullptr) return;
    finish(message.transfer, status.withContext("sending to rank " + std::to_string(rank) + " failed after " +
                                                std::to_string(message.numSent) + " of " +
                                                std::to_string(message.bytes.size()) + " bytes"));
  };
  for (auto& [id, message] : peer.unasked) failSend(*message);
  for (Outgoing* message : peer.outgoing) {
    failSend(*message);
    delete message;
  }
  peer = Peer();
  peer.failure = status;
  peer.incoming = std::move(whole);
}

void FramedMessenger::finish(Transfer*& transfer, Status status) {
  finished_.emplace_back(std::exchange(transfer, nullptr), std::move(status));
}

bool FramedMessenger::tellFinished() {
  if (isTelling_ || finished_.empty()) return false;
  isTelling_ = true;
  while (!finished_.empty()) {
    auto [transfer, status] = std::move(finished_.front());
    finished_.pop_front();
    transfer->finished(status);
  }
  isTelling_ = false;
  return true;
}

bool FramedMessenger::isOffered(int peer, const MessageId& id) const {
  const auto known = peers_.find(peer);
  if (known == peers_.end()) return false;
  const auto message = known->second.incoming.find(id);
  const bool isArriving = message != known->second.incoming.end() && message->second.transfer == nullptr;
  return isArriving || known->second.announced.contains(id);
}

bool FramedMessenger::progress(Clock::time_point until) {
  while (true) {
    const Clock::time_point now = Clock::now();
    if (now >= nextTick_) tick(now);
    if (tellFinished()) return true;
    const bool isWoken = poller_.wait(std::min(until, nextTick_));
    // Whatever happened may have set a timer.
    nextTick_ = std::min(nextTick_, tickedAt_ + kBusyTick);
    if (tellFinished()) return true;
    if (isWoken || until == Clock::time_point() || Clock::now() >= until) return false;
  }
}

bool FramedMessenger::hasUnsent() const {
  return !transport_->isFlushed() || std::any_of(peers_.begin(), peers_.end(), [](const auto& entry) {
    const Peer& peer = entry.second;
    return peer.failure && !(peer.control.empty() && peer.small.empty());
  });
}

void FramedMessenger::tick(Clock::time_point now) {
  tickedAt_ = now;
  if (now >= nextLook_) nextLook_ = lookAtPulses(now);
  nextTick_ = std::min(transport_->tick(now), nextLook_);
}

// --- Who is alive ---------------------------------------------------------------------------------------------------

Clock::time_point FramedMessenger::lookAtPulses(Clock::time_point now) {
  bool isAnyAwaited = false;
  for (auto& [rank, peer] : peers_) {
    if (!peer.failure) continue;
    const Transfer* awaiting = awaitingTransfer(peer);
    isAnyAwaited = isAnyAwaited || awaiting != nullptr;
    lookAtPulse(rank, peer, awaiting, now);
  }
  return isAnyAwaited ? now + Pulse::kInterval : Clock::time_point::max();
}

void FramedMessenger::lookAtPulse(int rank, Peer& peer, const Transfer* awaiting, Clock::time_point now) {
  const std::string route = awaiting != nullptr ? transport_->route(rank) : "";
  const Clock::duration silence = peer.pulse.silence();
  switch (peer.pulse.look(now, !route.empty(), peerTimeout_)) {
    case Pulse::Verdict::kFine: break;
    case Pulse::Verdict::kAsk:
      peer.control.push_back({FrameKind::kPing, {}, 0});
      pump(rank);
      break;
    case Pulse::Verdict::kWarn:
      AG_LOG(kWarn, "rank " + std::to_string(rank_) + ": rank " + std::to_string(rank) + " has not answered over " +
                        route + " for " + inMilliseconds(peer.pulse.silence()) + ", and " + awaiting->purpose() +
                        " needs it: its process is stopped or its host overloaded; it is given up after " +
                        inMilliseconds(peerTimeout_));
      break;
    case Pulse::Verdict::kAnswered:
      AG_LOG(kWarn, "rank " + std::to_string(rank_) + ": rank " + std::to_string(rank) + " answers again after " +
                        inMilliseconds(silence));
      break;
    case Pulse::Verdict::kLost:
      lose(rank, "its process has not answered over " + route + " for " + inMilliseconds(peer.pulse.silence()) +
                     ", it is stopped or hangs");
      break;
  }
}

const Transfer* FramedMessenger::awaitingTransfer(const Peer& peer) {
  const auto isAwaiting = [](const Transfer* transfer) { return transfer != nullptr && !transfer->isPatient; };
  for (const auto& [id, message] : peer.incoming) {
    if (isAwaiting(message.transfer)) return message.transfer;
  }
  for (const auto& [id, message] : peer.unasked) {
    if (isAwaiting(message->transfer)) return message->transfer;
  }
  for (const Outgoing* message : peer.outgoing) {
    if (isAwaiting(message->transfer)) return message->transfer;
  }
  return nullptr;
}

void FramedMessenger::lose(int rank, const std::string& why) {
  lost(rank, LossCause::kSilent,
       unavailable("rank " + std::to_string(rank) + " is lost to rank " + std::to_string(rank_) + ": " + why));
}

}  // namespace agspeed::comm
