// SPDX-License-Identifier: Apache-2.0
// A transport and a rail that record all calls. The test simulates the network and the peers.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "comm/transport/rail.h"

namespace agspeed::comm::transport {

/// The common part of FakeTransport and FakeRail.
template <typename Interface>
struct FakeFrames : Interface {
  using Capabilities = Transport::Capabilities;
  using Sink = Transport::Sink;

  const Capabilities& capabilities(int) const override { return can; }
  void attach(Sink& to) override { sink = &to; }
  void connect(int peer) override { wanted.push_back(peer); }
  bool canSend(int) const override { return room > 0; }
  void send(int, const OutgoingFrame& frame) override {
    --room;
    sent.push_back(frame);
  }
  void flush(int) override {}
  void beginTurn() override {}
  void endTurn() override {}
  void cancelSend(int, uint64_t, ByteView payload) override { cancelledPayloads.push_back(payload); }
  void cancelReceive(int, ByteView target) override { cancelledTargets.push_back(target); }
  bool isFlushed() const override { return true; }
  io::Clock::time_point tick(io::Clock::time_point now) override { return now + std::chrono::seconds(1); }
  std::string describeRoute(int) const override { return "its connection"; }
  double coalesceSeconds(int) const override { return coalesceFor; }

  Capabilities can = {.isReliable = true, .segmentBytes = 65536, .maxPayloadBytes = 65536};
  Sink* sink = nullptr;
  int room = 100;           ///< number of frames that the transport still accepts
  double coalesceFor = 0;   ///< seconds
  std::vector<int> wanted;  ///< peers to connect to
  std::vector<OutgoingFrame> sent;
  std::vector<ByteView> cancelledPayloads;
  std::vector<ByteView> cancelledTargets;
};

struct FakeTransport : FakeFrames<Transport> {};

/// A rail on which sent frames queue up.
struct FakeRail final : FakeFrames<Rail> {
  void disconnect(int peer) override { unwanted.push_back(peer); }
  void linkChanged(bool) override {}
  void peerLinkChanged(int, uint64_t rail, bool isUp) override { peerLinks.emplace_back(rail, isUp); }
  bool isReading(int peer) const override { return !canSend(peer); }
  double deliverySeconds(int, size_t numBytes) const override {
    size_t bytes = numBytes;
    for (const OutgoingFrame& frame : sent) bytes += frame.payload.size();
    return secondsPerByte * static_cast<double>(bytes);
  }
  bool mayStillReceive(int) const override { return isHeard; }
  double minRoundTripSeconds(int) const override { return 0; }
  RailInfo info() const override {
    RailInfo info;
    info.isHome = isHome;
    return info;
  }

  bool isHome = true;
  double secondsPerByte = 0;
  bool isHeard = false;                              ///< a connection that the peer has made is open
  std::vector<int> unwanted;                         ///< peers that were disconnected
  std::vector<std::pair<uint64_t, bool>> peerLinks;  ///< link states that peers have reported
};

}  // namespace agspeed::comm::transport
