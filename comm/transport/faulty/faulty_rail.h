// SPDX-License-Identifier: Apache-2.0
// FaultyRail: a rail that drops, repeats and reorders whole frames of another rail, for tests. A seed makes the faults
// reproducible. It declares itself unreliable. It does not change bytes within frames. One thread at a time; owns the
// other rail.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <random>

#include "comm/transport/faulty/rail_decorator.h"

namespace agspeed::comm::faulty {

/// How often each fault happens, as a share of all frames from 0 to 1.
struct FaultPlan {
  uint64_t seed = 1;
  double dropped = 0;
  double repeated = 0;
  double delayed = 0;  ///< sent after the next frame to the same peer, or at the next tick
};

class FaultyRail final : public RailDecorator {
 public:
  FaultyRail(std::unique_ptr<transport::Rail> inner, FaultPlan plan);

  const Capabilities& capabilities(int) const override { return capabilities_; }
  void send(int peer, const transport::OutgoingFrame& frame) override;
  void cancelSend(int peer, uint64_t token, ByteView payload) override;
  bool isFlushed() const override { return inner().isFlushed() && delayed_.empty(); }
  io::Clock::time_point tick(io::Clock::time_point now) override;

 private:
  /// Decides at random whether a fault with this share happens to the next frame.
  bool happens(double share) { return std::uniform_real_distribution<>()(random_) < share; }
  /// Sends the delayed frame to the peer, if there is one and the other rail can send.
  void sendDelayed(int peer);

  const FaultPlan plan_;
  Capabilities capabilities_;
  std::mt19937_64 random_;
  std::map<int, transport::OutgoingFrame> delayed_;  ///< by peer: the delayed frame
};

}  // namespace agspeed::comm::faulty
