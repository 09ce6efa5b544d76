// SPDX-License-Identifier: Apache-2.0
#include "comm/messaging/transport_messenger.h"

#include <algorithm>
#include <string>

#include "runtime/base/check.h"

namespace agspeed::comm {
namespace {

using framed::Endpoint;
using std::chrono::milliseconds;

constexpr Clock::duration kFlushTimeout = milliseconds(1000);
/// While something happens timers are looked at this often.
constexpr Clock::duration kBusyTick = milliseconds(10);
/// While much waits for ways that stay busy, so much passes between two wake-ups; less would save nothing.
constexpr double kLeastRest = 1e-3, kLongestRest = 2e-3;

}  // namespace

FramedMessenger::FramedMessenger(int rank, int size, std::unique_ptr<Transport> transport, Poller& poller,
                                 Clock::duration peerTimeout)
    : rank_(rank),
      transport_(std::move(transport)),
      poller_(poller),
      peerTimeout_(peerTimeout),
      endpoints_(static_cast<size_t>(size)),
      isWanted_(static_cast<size_t>(size)) {
  AG_CHECK(transport_->capabilities().isAcknowledging, "messages need a transport that acknowledges");
  transport_->attach(*this);
}

FramedMessenger::~FramedMessenger() {
  // What belongs to callers is not touched any more; what was copied still leaves.
  for (const auto& endpoint : endpoints_) {
    if (endpoint != nullptr) endpoint->forgetCallers();
  }
  const auto isDone = [&] {
    return transport_->isFlushed() && !isAny([](const Endpoint& each) { return each.hasSmallUnsent(); });
  };
  const Clock::time_point limit = Clock::now() + kFlushTimeout;
  transport_->tick(Clock::now());
  while (!isDone() && Clock::now() < limit) {
    poller_.wait(Clock::now() + milliseconds(5));
    transport_->tick(Clock::now());
  }
}

template <typename Predicate>
bool FramedMessenger::isAny(const Predicate& predicate) const {
  return std::any_of(endpoints_.begin(), endpoints_.end(),
                     [&](const auto& each) { return each != nullptr && predicate(*each); });
}

framed::Endpoint& FramedMessenger::conversationWith(int peer) {
  std::unique_ptr<Endpoint>& endpoint = endpoints_[static_cast<size_t>(peer)];
  if (endpoint == nullptr) {
    endpoint = std::make_unique<Endpoint>(framed::EndpointContext{rank_, peer, *transport_, completions_, forgotten_});
  }
  return *endpoint;
}

framed::Endpoint& FramedMessenger::with(int peer) {
  Endpoint& endpoint = conversationWith(peer);
  if (!isWanted_[static_cast<size_t>(peer)]) {
    isWanted_[static_cast<size_t>(peer)] = true;
    transport_->connect(peer);
    nextTick_ = {};
  }
  return endpoint;
}

void FramedMessenger::check(const Transfer& transfer) const {
  AG_CHECK(transfer.peer >= 0 && transfer.peer < size() && transfer.peer != rank_, "{}", transfer.peer);
}

void FramedMessenger::send(Transfer& transfer) {
  check(transfer);
  with(transfer.peer).send(transfer);
  watch();
  completions_.tell();
}

void FramedMessenger::receive(Transfer& transfer) {
  check(transfer);
  // What nobody is in a hurry for is no reason to connect: a group would else be a mesh from its start.
  Endpoint& endpoint = transfer.isBackground ? conversationWith(transfer.peer) : with(transfer.peer);
  endpoint.receive(transfer);
  watch();
  completions_.tell();
}

void FramedMessenger::cancel(Transfer& transfer, const Status& reason) {
  completions_.drop(transfer);
  conversationWith(transfer.peer).cancel(transfer);
  transfer.finished(reason);
}

void FramedMessenger::forget(uint32_t communicator) {
  forgotten_.insert(communicator);
  for (const auto& endpoint : endpoints_) {
    if (endpoint != nullptr) endpoint->forget(communicator);
  }
}

void FramedMessenger::lost(int peer, LossCause, const Status& status) { with(peer).lost(status); }

bool FramedMessenger::probe(int peer, const MessageId& id) const {
  const auto& endpoint = endpoints_[static_cast<size_t>(peer)];
  return endpoint != nullptr && endpoint->probe(id);
}

bool FramedMessenger::hasUnsent() const {
  return !transport_->isFlushed() || isAny([](const Endpoint& each) { return each.hasUnsent(); });
}

// --- Timers ---------------------------------------------------------------------------------------------------------

bool FramedMessenger::progress(Clock::time_point until) {
  while (true) {
    const Clock::time_point now = Clock::now();
    if (now >= nextTick_) tick(now);
    if (completions_.tell()) return true;
    const Clock::time_point limit = std::min(until, nextTick_);
    const bool isWoken = poller_.wait(limit, std::min(limit, coalesceUntil()));
    wokenAt_ = Clock::now();
    // Whatever happened may have set a timer.
    nextTick_ = std::min(nextTick_, tickedAt_ + kBusyTick);
    if (completions_.tell()) return true;
    if (isWoken || until == Clock::time_point() || wokenAt_ >= until) return false;
  }
}

Clock::time_point FramedMessenger::coalesceUntil() const {
  double seconds = 0;
  for (int peer = 0; peer < size(); ++peer) {
    const auto& endpoint = endpoints_[static_cast<size_t>(peer)];
    if (endpoint == nullptr || !endpoint->isSending()) continue;
    if (!endpoint->hasMuchToSend()) return {};
    const double most = seconds == 0 ? kLongestRest : seconds;
    seconds = std::min(most, transport_->coalesceSeconds(peer));
    if (seconds < kLeastRest) return {};
  }
  return wokenAt_ + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

void FramedMessenger::watch() {
  nextTick_ = std::min(nextTick_, tickedAt_ + kBusyTick);
  nextLook_ = std::min(nextLook_, tickedAt_ + LivenessMonitor::kInterval);
}

void FramedMessenger::tick(Clock::time_point now) {
  tickedAt_ = now;
  if (now >= nextLook_) nextLook_ = lookAtPulses(now);
  nextTick_ = std::min(transport_->tick(now), nextLook_);
}

Clock::time_point FramedMessenger::lookAtPulses(Clock::time_point now) {
  bool isAnyAwaited = false;
  for (const auto& endpoint : endpoints_) {
    if (endpoint != nullptr && endpoint->lookAtPulse(now, peerTimeout_)) isAnyAwaited = true;
  }
  return isAnyAwaited ? now + LivenessMonitor::kInterval : Clock::time_point::max();
}

}  // namespace agspeed::comm
