// SPDX-License-Identifier: Apache-2.0
// RailDecorator: a rail that forwards all calls to another rail; base class of rails that change or count some of them.
// One thread at a time; owns the other rail.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "comm/transport/rail.h"

namespace agspeed::comm::faulty {

class RailDecorator : public transport::Rail {
 public:
  explicit RailDecorator(std::unique_ptr<transport::Rail> inner) : inner_(std::move(inner)) {}

  const Capabilities& capabilities(int peer) const override { return inner_->capabilities(peer); }
  void attach(Sink& sink) override { inner_->attach(sink); }
  void connect(int peer) override { inner_->connect(peer); }
  bool canSend(int peer) const override { return inner_->canSend(peer); }
  void send(int peer, const transport::OutgoingFrame& frame) override { inner_->send(peer, frame); }
  void flush(int peer) override { inner_->flush(peer); }
  void beginTurn() override { inner_->beginTurn(); }
  void endTurn() override { inner_->endTurn(); }
  void cancelSend(int peer, uint64_t token, ByteView payload) override { inner_->cancelSend(peer, token, payload); }
  void cancelReceive(int peer, ByteView target) override { inner_->cancelReceive(peer, target); }
  bool isFlushed() const override { return inner_->isFlushed(); }
  io::Clock::time_point tick(io::Clock::time_point now) override { return inner_->tick(now); }
  std::string describeRoute(int peer) const override { return inner_->describeRoute(peer); }
  double coalesceSeconds(int peer) const override { return inner_->coalesceSeconds(peer); }

  void disconnect(int peer) override { inner_->disconnect(peer); }
  void linkChanged(bool isUp) override { inner_->linkChanged(isUp); }
  void peerLinkChanged(int peer, uint64_t rail, bool isUp) override { inner_->peerLinkChanged(peer, rail, isUp); }
  bool isReading(int peer) const override { return inner_->isReading(peer); }
  double deliverySeconds(int peer, size_t numBytes) const override { return inner_->deliverySeconds(peer, numBytes); }
  bool mayStillReceive(int peer) const override { return inner_->mayStillReceive(peer); }
  double minRoundTripSeconds(int peer) const override { return inner_->minRoundTripSeconds(peer); }
  transport::RailInfo info() const override { return inner_->info(); }

 protected:
  transport::Rail& inner() { return *inner_; }
  const transport::Rail& inner() const { return *inner_; }

 private:
  const std::unique_ptr<transport::Rail> inner_;
};

}  // namespace agspeed::comm::faulty
