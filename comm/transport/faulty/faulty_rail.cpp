// SPDX-License-Identifier: Apache-2.0
#include "comm/transport/faulty/faulty_rail.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace agspeed::comm::faulty {

FaultyRail::FaultyRail(std::unique_ptr<transport::Rail> inner, FaultPlan plan)
    : RailDecorator(std::move(inner)), plan_(plan), capabilities_(RailDecorator::capabilities(0)), random_(plan.seed) {
  capabilities_.isReliable = false;
}

void FaultyRail::send(int peer, const transport::OutgoingFrame& frame) {
  if (happens(plan_.dropped)) return;
  if (happens(plan_.delayed) && delayed_.try_emplace(peer, frame).second) return;
  inner().send(peer, frame);
  if (happens(plan_.repeated) && inner().canSend(peer)) inner().send(peer, frame);
  sendDelayed(peer);
}

void FaultyRail::sendDelayed(int peer) {
  const auto found = delayed_.find(peer);
  if (found == delayed_.end() || !inner().canSend(peer)) return;
  transport::OutgoingFrame frame = found->second;
  frame.mayWait = false;
  delayed_.erase(found);
  inner().send(peer, frame);
}

void FaultyRail::cancelSend(int peer, uint64_t token, ByteView payload) {
  inner().cancelSend(peer, token, payload);
  const auto found = delayed_.find(peer);
  if (found == delayed_.end() || found->second.token != token) return;
  if (transport::overlaps(found->second.payload, payload)) delayed_.erase(found);
}

io::Clock::time_point FaultyRail::tick(io::Clock::time_point now) {
  std::vector<int> peers;
  for (const auto& [peer, frame] : delayed_) peers.push_back(peer);
  for (const int peer : peers) sendDelayed(peer);
  return std::min(inner().tick(now), now + std::chrono::milliseconds(10));
}

}  // namespace agspeed::comm::faulty
