// SPDX-License-Identifier: Apache-2.0
#include "comm/messaging/transport_messenger.h"

#include <algorithm>
#include <string>

#include "runtime/base/check.h"

namespace agspeed::comm::messaging {
namespace {

using std::chrono::milliseconds;

constexpr io::Clock::duration kFlushTimeout = milliseconds(1000);
/// The longest time until the next tick() after an event or the start of a transfer.
constexpr io::Clock::duration kBusyTick = milliseconds(10);
/// Limits, in seconds, of the time for which wake-ups are coalesced. Coalescing for less than kMinCoalesce saves
/// nothing, so the messenger then does not coalesce.
constexpr double kMinCoalesce = 1e-3, kMaxCoalesce = 2e-3;

}  // namespace

TransportMessenger::TransportMessenger(int rank, int size, const rendezvous::RankNames& names,
                                       std::unique_ptr<transport::Transport> transport, io::Poller& poller,
                                       io::Clock::duration peerTimeout)
    : rank_(rank),
      names_(names),
      transport_(std::move(transport)),
      poller_(poller),
      peerTimeout_(peerTimeout),
      endpoints_(static_cast<size_t>(size)),
      isWanted_(static_cast<size_t>(size)) {
  AG_CHECK(transport_->capabilities(rank_).isAcknowledging, "messages need a transport that acknowledges");
  transport_->attach(*this);
}

TransportMessenger::~TransportMessenger() {
  // Stop accessing callers' memory now. The loop below still sends the eager copies, which the messenger owns.
  for (const auto& endpoint : endpoints_) {
    if (endpoint != nullptr) endpoint->detachCallers();
  }
  const auto isDone = [&] {
    return transport_->isFlushed() && !isAny([](const Endpoint& each) { return each.hasUnsentCopies(); });
  };
  const io::Clock::time_point limit = io::Clock::now() + kFlushTimeout;
  transport_->tick(io::Clock::now());
  while (!isDone() && io::Clock::now() < limit) {
    poller_.wait(io::Clock::now() + milliseconds(5));
    transport_->tick(io::Clock::now());
  }
}

template <typename Predicate>
bool TransportMessenger::isAny(const Predicate& predicate) const {
  return std::any_of(endpoints_.begin(), endpoints_.end(),
                     [&](const auto& each) { return each != nullptr && predicate(*each); });
}

Endpoint& TransportMessenger::endpointWith(int peer) {
  std::unique_ptr<Endpoint>& endpoint = endpoints_[static_cast<size_t>(peer)];
  if (endpoint == nullptr) {
    endpoint = std::make_unique<Endpoint>(EndpointContext{rank_, peer, names_, *transport_, completions_, dropped_});
  }
  return *endpoint;
}

Endpoint& TransportMessenger::connectedTo(int peer) {
  Endpoint& endpoint = endpointWith(peer);
  if (!isWanted_[static_cast<size_t>(peer)]) {
    isWanted_[static_cast<size_t>(peer)] = true;
    transport_->connect(peer);
    nextTick_ = {};
  }
  return endpoint;
}

void TransportMessenger::check(const Transfer& transfer) const {
  AG_CHECK(transfer.peer >= 0 && transfer.peer < size() && transfer.peer != rank_, "{}", transfer.peer);
}

void TransportMessenger::send(Transfer& transfer) {
  check(transfer);
  connectedTo(transfer.peer).send(transfer);
  startTimers();
  completions_.notifyAll();
}

void TransportMessenger::receive(Transfer& transfer) {
  check(transfer);
  // A background receive does not connect to its peer. Otherwise all ranks of a group would connect to each other when
  // the group starts.
  Endpoint& endpoint = transfer.isBackground ? endpointWith(transfer.peer) : connectedTo(transfer.peer);
  endpoint.receive(transfer);
  startTimers();
  completions_.notifyAll();
}

void TransportMessenger::cancel(Transfer& transfer, const Status& reason) {
  completions_.drop(transfer);
  endpointWith(transfer.peer).cancel(transfer);
  transfer.finished(reason);
}

void TransportMessenger::dropCommunicator(uint32_t communicator) {
  dropped_.insert(communicator);
  for (const auto& endpoint : endpoints_) {
    if (endpoint != nullptr) endpoint->dropCommunicator(communicator);
  }
}

void TransportMessenger::lost(int peer, transport::LossCause, const Status& status) { connectedTo(peer).lost(status); }

bool TransportMessenger::probe(int peer, const wire::MessageId& id) const {
  const auto& endpoint = endpoints_[static_cast<size_t>(peer)];
  return endpoint != nullptr && endpoint->probe(id);
}

uint64_t TransportMessenger::numBytesMoved(const Transfer& transfer) const {
  const auto& endpoint = endpoints_[static_cast<size_t>(transfer.peer)];
  return endpoint == nullptr ? 0 : endpoint->numBytesMoved(transfer);
}

io::Clock::duration TransportMessenger::silence(int peer) const {
  const auto& endpoint = endpoints_[static_cast<size_t>(peer)];
  return endpoint == nullptr ? io::Clock::duration::zero() : endpoint->silence();
}

bool TransportMessenger::hasUnsent() const {
  return !transport_->isFlushed() || isAny([](const Endpoint& each) { return each.hasUnsent(); });
}

// --- Timers ---------------------------------------------------------------------------------------------------------

bool TransportMessenger::progress(io::Clock::time_point until) {
  while (true) {
    const io::Clock::time_point now = io::Clock::now();
    if (now >= nextTick_) tick(now);
    if (completions_.notifyAll()) return true;
    const io::Clock::time_point limit = std::min(until, nextTick_);
    transport_->beginTurn();
    const bool isWoken = poller_.wait(limit, std::min(limit, coalesceUntil()));
    transport_->endTurn();
    wokenAt_ = io::Clock::now();
    // Call tick() soon, because an event may have started a timer.
    nextTick_ = std::min(nextTick_, tickedAt_ + kBusyTick);
    if (completions_.notifyAll()) return true;
    if (isWoken || until == io::Clock::time_point() || wokenAt_ >= until) return false;
  }
}

io::Clock::time_point TransportMessenger::coalesceUntil() const {
  double seconds = 0;
  for (int peer = 0; peer < size(); ++peer) {
    const auto& endpoint = endpoints_[static_cast<size_t>(peer)];
    if (endpoint == nullptr || !endpoint->isSending()) continue;
    if (!endpoint->hasMuchToSend()) return {};
    const double most = seconds == 0 ? kMaxCoalesce : seconds;
    seconds = std::min(most, transport_->coalesceSeconds(peer));
    if (seconds < kMinCoalesce) return {};
  }
  return wokenAt_ + std::chrono::duration_cast<io::Clock::duration>(std::chrono::duration<double>(seconds));
}

void TransportMessenger::startTimers() {
  nextTick_ = std::min(nextTick_, tickedAt_ + kBusyTick);
  nextCheck_ = std::min(nextCheck_, tickedAt_ + LivenessMonitor::kInterval);
}

void TransportMessenger::tick(io::Clock::time_point now) {
  tickedAt_ = now;
  if (now >= nextCheck_) nextCheck_ = checkPeers(now);
  nextTick_ = std::min(transport_->tick(now), nextCheck_);
}

io::Clock::time_point TransportMessenger::checkPeers(io::Clock::time_point now) {
  bool isAnyAwaited = false;
  for (const auto& endpoint : endpoints_) {
    if (endpoint != nullptr && endpoint->checkLiveness(now, peerTimeout_)) isAnyAwaited = true;
  }
  return isAnyAwaited ? now + LivenessMonitor::kInterval : io::Clock::time_point::max();
}

}  // namespace agspeed::comm::messaging
