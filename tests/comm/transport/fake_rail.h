// SPDX-License-Identifier: Apache-2.0
// A transport that records what it is given; the test plays the network and the peers.
#pragma once

#include <vector>

#include "comm/transport/transport.h"

namespace agspeed::comm {

struct FakeTransport : Transport {
  const Capabilities& capabilities() const override { return can; }
  void attach(Sink& to) override { sink = &to; }
  void connect(int peer) override { wanted.push_back(peer); }
  void disconnect(int peer) override { unwanted.push_back(peer); }
  bool canSend(int) const override { return room > 0; }
  void send(int, const OutgoingFrame& frame) override {
    --room;
    sent.push_back(frame);
  }
  void cancelReceive(int, ByteView target) override { abandoned.push_back(target); }
  void cancelSend(int, uint64_t, ByteView payload) override { withdrawn.push_back(payload); }
  bool isFlushed() const override { return true; }
  bool mayStillReceive(int) const override { return isHeard; }
  double coalesceSeconds(int) const override { return coalesceFor; }
  Clock::time_point tick(Clock::time_point now) override { return now + std::chrono::seconds(1); }

  Capabilities can = {.isReliable = true, .segmentBytes = 65536, .maxPayloadBytes = 65536};
  Sink* sink = nullptr;
  int room = 100;             ///< frames that it still takes
  bool isHeard = false;       ///< the peer's connection is open
  double coalesceFor = 0;     ///< seconds
  std::vector<int> wanted;    ///< peers to connect to
  std::vector<int> unwanted;  ///< of these, those that were given up
  std::vector<OutgoingFrame> sent;
  std::vector<ByteView> abandoned;
  std::vector<ByteView> withdrawn;
};

}  // namespace agspeed::comm
