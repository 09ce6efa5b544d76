// SPDX-License-Identifier: Apache-2.0
#include "comm/collective/collective_queue.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace agspeed::comm::collective {
namespace {

size_t bytesOf(const engine::CollectiveCall& call) {
  size_t bytes = 0;
  for (const auto chunk : call.input) bytes += chunk.size();
  for (const auto chunk : call.output) bytes += chunk.size();
  return bytes;
}

bool isBarrier(const CollectiveOperation& operation) {
  return operation.call.collective == schedule::Collective::kBarrier;
}

/// Returns whether an operation may start before older operations have started. Its input must be ready, and it must
/// not be a barrier.
bool mayPass(const CollectiveOperation& operation) { return !operation.readiness && !isBarrier(operation); }

}  // namespace

void CollectiveQueue::add(Handle operation) {
  if (operation->isHostStatsExchange) exchanges_.push_back(operation->sequence);
  waiting_.push_back(std::move(operation));
}

CollectiveQueue::Handle CollectiveQueue::startNext() {
  const auto at = findNext();
  if (at == waiting_.end()) return nullptr;
  Handle next = std::move(*at);
  waiting_.erase(at);
  running_.push_back(next);
  bytesInFlight_ += bytesInFlight(*next);
  return next;
}

std::deque<CollectiveQueue::Handle>::iterator CollectiveQueue::findNext() {
  const auto none = waiting_.end();
  if (waiting_.empty()) return none;
  const auto isOlder = [&](const Handle& other) { return other->sequence < waiting_.front()->sequence; };
  auto at = waiting_.begin();
  if ((*at)->readiness || std::any_of(running_.begin(), running_.end(), isOlder)) {
    at = std::min_element(waiting_.begin(), waiting_.end(), [](const Handle& a, const Handle& b) {
      return std::tuple(!mayPass(*a), a->priority, a->sequence) < std::tuple(!mayPass(*b), b->priority, b->sequence);
    });
    if (!mayPass(**at)) return none;
    if (bytesInFlight_ > 0 && bytesInFlight_ + bytesInFlight(**at) > maxInFlightBytes_) return none;
  }
  return !exchanges_.empty() && (*at)->sequence > exchanges_.front() ? none : at;
}

CollectiveQueue::Handle CollectiveQueue::finish(const engine::Execution& execution) {
  const auto at = std::find_if(running_.begin(), running_.end(),
                               [&](const Handle& operation) { return operation->execution == &execution; });
  Handle operation = std::move(*at);
  running_.erase(at);
  bytesInFlight_ -= bytesInFlight(*operation);
  if (operation->isHostStatsExchange) exchanges_.pop_front();
  return operation;
}

const CollectiveOperation* CollectiveQueue::holderOf(const CollectiveOperation& operation) const {
  const auto holds = [&](const Handle& other) {
    return other->sequence < operation.sequence && (isBarrier(operation) || other->isHostStatsExchange);
  };
  if (const auto at = std::find_if(running_.begin(), running_.end(), holds); at != running_.end()) return at->get();
  const auto at = std::find_if(waiting_.begin(), waiting_.end(), holds);
  return at == waiting_.end() ? nullptr : at->get();
}

CollectiveQueue::Operations CollectiveQueue::takeAll() {
  exchanges_.clear();
  bytesInFlight_ = 0;
  return {std::exchange(running_, {}), std::exchange(waiting_, {})};
}

size_t CollectiveQueue::bytesInFlight(const CollectiveOperation& operation) const {
  const size_t most = std::min(operation.fitted.segmentBytes, maxInFlightBytes_) * operation.choice.window * numRanks_;
  return std::min(bytesOf(operation.call), most);
}

}  // namespace agspeed::comm::collective
