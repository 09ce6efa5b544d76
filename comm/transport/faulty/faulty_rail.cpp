// SPDX-License-Identifier: Apache-2.0
#include "comm/transport/faulty/faulty_rail.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace agspeed::comm {

Faulty::Faulty(std::unique_ptr<Transport> inner, FaultPlan plan)
    : inner_(std::move(inner)), plan_(plan), capabilities_(inner_->capabilities()), random_(plan.seed) {
  capabilities_.isReliable = false;
}

void Faulty::send(int peer, const OutgoingFrame& frame) {
  if (happens(plan_.dropped)) return;
  if (happens(plan_.delayed) && delayed_.try_emplace(peer, frame).second) return;
  inner_->send(peer, frame);
  if (happens(plan_.repeated) && inner_->canSend(peer)) inner_->send(peer, frame);
  sendDelayed(peer);
}

void Faulty::sendDelayed(int peer) {
  const auto found = delayed_.find(peer);
  if (found == delayed_.end() || !inner_->canSend(peer)) return;
  const OutgoingFrame frame = found->second;
  delayed_.erase(found);
  inner_->send(peer, frame);
}

void Faulty::cancelSend(int peer, uint64_t token, ByteView payload) {
  inner_->cancelSend(peer, token, payload);
  const auto found = delayed_.find(peer);
  if (found == delayed_.end() || found->second.token != token) return;
  if (overlaps(found->second.payload, payload)) delayed_.erase(found);
}

Clock::time_point Faulty::tick(Clock::time_point now) {
  std::vector<int> peers;
  for (const auto& [peer, frame] : delayed_) peers.push_back(peer);
  for (const int peer : peers) sendDelayed(peer);
  return std::min(inner_->tick(now), now + std::chrono::milliseconds(10));
}

}  // namespace agspeed::comm
