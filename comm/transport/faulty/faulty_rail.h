// SPDX-License-Identifier: Apache-2.0
// Faulty: a transport that drops, repeats and reorders frames by a seed, for tests of what must survive that. It
// declares itself unreliable and unordered. What happens to bytes below the seals (flips, cuts) is not its business.
// One thread at a time; owns the transport it spoils.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>

#include "comm/transport/transport.h"

namespace agspeed::comm {

/// Shares of all frames, from 0 to 1.
struct FaultPlan {
  uint64_t seed = 1;
  double dropped = 0;
  double repeated = 0;
  double delayed = 0;  ///< sent after a later frame, or at the next tick
};

class Faulty final : public Transport {
 public:
  Faulty(std::unique_ptr<Transport> inner, FaultPlan plan);

  const Capabilities& capabilities() const override { return capabilities_; }
  void attach(Sink& sink) override { inner_->attach(sink); }
  void connect(int peer) override { inner_->connect(peer); }
  bool canSend(int peer) const override { return inner_->canSend(peer); }
  void send(int peer, const OutgoingFrame& frame) override;
  void cancelReceive(int peer, ByteView target) override { inner_->cancelReceive(peer, target); }
  void cancelSend(int peer, uint64_t token, ByteView payload) override;
  bool isFlushed() const override { return inner_->isFlushed() && delayed_.empty(); }
  Clock::time_point tick(Clock::time_point now) override;
  std::string route(int peer) const override { return inner_->route(peer); }
  bool mayStillReceive(int peer) const override { return inner_->mayStillReceive(peer); }
  void disconnect(int peer) override { inner_->disconnect(peer); }
  void peerLinkChanged(int peer, uint64_t rail, bool hasCarrier) override {
    inner_->peerLinkChanged(peer, rail, hasCarrier);
  }
  double deliverySeconds(int peer, size_t numBytes) const override { return inner_->deliverySeconds(peer, numBytes); }
  double coalesceSeconds(int peer) const override { return inner_->coalesceSeconds(peer); }

 private:
  bool happens(double share) { return std::uniform_real_distribution<>()(random_) < share; }
  void sendDelayed(int peer);

  std::unique_ptr<Transport> inner_;
  const FaultPlan plan_;
  Capabilities capabilities_;
  std::mt19937_64 random_;
  std::map<int, OutgoingFrame> delayed_;
};

}  // namespace agspeed::comm
