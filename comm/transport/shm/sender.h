// SPDX-License-Identifier: Apache-2.0
// Sender: frames to one peer through a ring. Small payloads are copied into it; large ones are offered where they lie,
// for the peer to read them once, or, where it cannot read them, copied part by part as the ring has room. The payload
// of a small message is its sender's again after send(). A frame with a token is acknowledged when the peer
// has read it.
//
// One thread at a time. Calls Sink::acknowledged and Sink::writable from advance() and send() only.
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
  /// `bell` is the peer's.
  Sender(SharedMemory memory, int peer, Transport::Sink& sink, Doorbell& bell, ShmCounters& counters)
      : ring_(std::move(memory)), peer_(peer), sink_(sink), bell_(bell), counters_(counters) {}

  bool canSend() const { return !streamed_ && refused_.empty() && ring_.room() >= kMinRoom; }
  /// Requires: canSend().
  void send(const OutgoingFrame& frame);
  /// Takes note of what the peer has read and goes on. Returns: whether anything moved.
  bool advance();
  /// The payloads of frames with this token are not read any more.
  void cancelSend(uint64_t token);
  /// Whether nothing needs this process any more: what was copied is in memory that its reader has, too.
  bool isFlushed() const;
  /// Asks the peer to ring this process's bell for whatever the sender waits for.
  void askToBeWoken();

 private:
  static constexpr size_t kMinRoom = 4096;

  /// A frame that the peer has not read. Only an offer that stands has a payload here.
  struct Awaited {
    OutgoingFrame frame;
    uint64_t position = 0;  ///< of its last record
    uint64_t end = 0;
  };

  /// Ends the frames before `read`.
  void settle(uint64_t read);
  /// Begins to copy a payload.
  void start(const OutgoingFrame& frame);
  /// Copies as much of the streamed payload as there is room for.
  void stream();
  /// Copies what is left of the streamed payload: it is the caller's again.
  void copyRemaining();
  /// The streamed payload is in the ring.
  void endCopy();
  void await(const OutgoingFrame& frame);
  void ring();

  RingWriter ring_;
  const int peer_;
  Transport::Sink& sink_;
  Doorbell& bell_;
  ShmCounters& counters_;
  std::deque<Awaited> awaited_;
  // Without payload once cancelled.
  std::deque<OutgoingFrame> refused_;  ///< to be copied after all
  std::optional<OutgoingFrame> streamed_;
  size_t numStreamed_ = 0;
  std::vector<std::byte> remaining_;  ///< the rest of a small message that the ring had no room for
  bool mayOffer_ = true;              ///< until the peer refused an offer
  bool isFull_ = false;               ///< canSend() was false after the last change
};

}  // namespace agspeed::comm::shm
