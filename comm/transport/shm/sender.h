// SPDX-License-Identifier: Apache-2.0
// Sender: sends frames to one peer through a ring (ring.h). Small payloads are copied into the ring. Large payloads are
// offered: the ring gets their address, and the peer reads them from this process's memory. If the peer cannot read
// this memory, these payloads are copied into the ring part by part. The caller may reuse the payload of a small
// message after send(). A frame with a token is acknowledged when the peer has read it.
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
  Sender(SharedMemory memory, int peer, transport::Transport::Sink& sink, Doorbell& bell, ShmCounters& counters)
      : ring_(std::move(memory)), peer_(peer), sink_(sink), bell_(bell), counters_(counters) {}

  bool canSend() const { return !streamed_ && refused_.empty() && ring_.room() >= kMinRoom; }
  /// Requires: canSend().
  void send(const transport::OutgoingFrame& frame);
  /// Acknowledges the frames that the peer has read, and writes more bytes. Returns true if the peer has read bytes
  /// since the last call, or if this call has written bytes. The call is cheap if there is nothing to do: no frame
  /// awaits an acknowledgement, and the ring was not full.
  bool advance();
  /// Stops reading the payloads of frames with this token. advance() acknowledges these frames later.
  void cancelSend(uint64_t token);
  /// Whether all frames are completely in the ring, without payloads in this process's memory. The peer keeps the ring,
  /// so these frames arrive even if this process ends.
  bool isFlushed() const;
  /// Asks the peer to ring this process's bell when it has read the next large message, or when half of a full ring is
  /// free.
  void askToBeWoken();

 private:
  static constexpr size_t kMinRoom = 4096;

  /// A frame that the peer has not read yet. It has a payload only if it is an offer that was not cancelled.
  struct Awaited {
    transport::OutgoingFrame frame;
    uint64_t position = 0;  ///< position at which the frame's last record begins
    uint64_t end = 0;       ///< position at which the frame's last record ends
  };

  /// Removes the awaited frames that end at or before `read`, the position up to which the peer has read the ring.
  /// Acknowledges these frames, except that offers that the peer has refused go to refused_.
  void settle(uint64_t read);
  /// Begins to copy a frame and its payload into the ring.
  void start(const transport::OutgoingFrame& frame);
  /// Copies as much of the streamed payload into the ring as there is room for.
  void stream();
  /// Copies the rest of the streamed payload to remaining_, so that the caller may reuse its memory.
  void copyRemaining();
  /// Finishes the streamed frame, whose payload is completely in the ring or was cancelled.
  void endCopy();
  /// Adds the frame to awaited_ if it has a token, so that it is acknowledged when the peer has read the last record.
  void await(const transport::OutgoingFrame& frame);
  /// Rings the peer's bell.
  void ring();

  RingWriter ring_;
  const int peer_;
  transport::Transport::Sink& sink_;
  Doorbell& bell_;
  ShmCounters& counters_;
  std::deque<Awaited> awaited_;
  // The next two members remove the payload of a frame when its send is cancelled.
  std::deque<transport::OutgoingFrame>
      refused_;  ///< offers that the peer could not read, which must be copied into the ring
  std::optional<transport::OutgoingFrame> streamed_;  ///< the frame that is being copied into the ring
  size_t numStreamed_ = 0;                            ///< payload bytes of streamed_ that were copied
  std::vector<std::byte> remaining_;                  ///< the rest of a small message for which the ring had no room
  bool mayOffer_ = true;                              ///< false once the peer has refused an offer
  bool isFull_ = false;                               ///< canSend() was false after the last send() or advance()
};

}  // namespace agspeed::comm::shm
