// SPDX-License-Identifier: Apache-2.0
// Sender: sends frames to one peer through a ring. Small payloads are copied into it. Large ones are offered in place:
// the ring holds their address, and the peer reads them from this process's memory. If the peer cannot do that, they
// are copied part by part as the ring has room. The payload of a small message is free after send(). A frame with a
// token is acknowledged when the peer has read it.
//
// One thread at a time. It calls Sink::acknowledged and Sink::writable from advance() and send() only.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "comm/transport/shm/counters.h"
#include "comm/transport/shm/doorbell.h"
#include "comm/transport/shm/ring.h"
#include "comm/transport/transport.h"

namespace agspeed::comm::shm {

class Sender {
 public:
  /// `bell` is the peer's bell.
  Sender(SharedMemory memory, int peer, Transport::Sink& sink, Doorbell& bell, ShmCounters& counters)
      : ring_(std::move(memory)), peer_(peer), sink_(sink), bell_(bell), counters_(counters) {}

  bool canSend() const { return !streamed_ && refused_.empty() && ring_.room() >= kMinRoom; }
  /// Requires: canSend().
  void send(const OutgoingFrame& frame);
  /// Handles the peer's progress and writes more. Returns: whether the peer has read or this sender has written bytes.
  bool advance();
  /// From now on the payloads of frames with this token are not read. advance() acknowledges the frames later.
  void cancelSend(uint64_t token);
  /// Whether the ring, which the peer keeps, holds all frames, so that they do not need this process any more.
  bool isFlushed() const;
  /// Asks the peer to ring this process's bell when a full ring has room or the next large message has been read.
  void askToBeWoken();

 private:
  static constexpr size_t kMinRoom = 4096;

  /// A frame that the peer has not read. Only an offer that was not cancelled has a payload here.
  struct Awaited {
    OutgoingFrame frame;
    uint64_t position = 0;  ///< of its last record
    uint64_t end = 0;
  };

  /// Ends the frames before the reader's position `read`.
  void settle(uint64_t read);
  /// Begins to copy a payload into the ring.
  void start(const OutgoingFrame& frame);
  /// Copies as much of the streamed payload as there is room for.
  void stream();
  /// Copies the rest of the streamed payload to remaining_, so that the caller's memory is free.
  void copyRemaining();
  /// The streamed payload is completely in the ring.
  void endCopy();
  void await(const OutgoingFrame& frame);
  void ring();

  RingWriter ring_;
  const int peer_;
  Transport::Sink& sink_;
  Doorbell& bell_;
  ShmCounters& counters_;
  std::deque<Awaited> awaited_;
  // A cancelled frame has no payload.
  std::deque<OutgoingFrame> refused_;  ///< offers that the peer could not read: to be copied
  std::optional<OutgoingFrame> streamed_;
  size_t numStreamed_ = 0;
  std::vector<std::byte> remaining_;  ///< the rest of a small message that the ring had no room for
  bool mayOffer_ = true;              ///< the peer has refused no offer
  bool isFull_ = false;               ///< canSend() was false after the last change
};

}  // namespace agspeed::comm::shm
