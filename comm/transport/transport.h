// SPDX-License-Identifier: Apache-2.0
// Transport: sends frames to peers; comm/messaging makes messages of them. Capabilities declare the properties of the
// route to a peer. There are two kinds of transport:
//
//   rail        frames may get lost with their connection (rail.h): tcp, faulty
//   reliable    every counted frame arrives exactly once, in any order: multirail, shared memory
//
// Threading: one thread at a time drives everything. Ownership: the caller owns a payload; the transport reads it until
// the frame is acknowledged or its send is cancelled. The Sink is called from within send(), tick() or the poller.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "comm/io/clock.h"
#include "comm/wire/frame_format.h"
#include "runtime/base/status.h"

namespace agspeed::comm {

using ByteView = std::span<const std::byte>;

/// A frame to send. A transport that counts frames (multirail) fills in its number and its acknowledgement.
struct OutgoingFrame {
  FrameHeader header;
  ByteView payload;
  uint64_t token = 0;    ///< returned with the acknowledgement
  bool mayWait = false;  ///< may wait for flush(), so that several frames leave in one system call
};

/// Why frames can get lost.
enum class LossCause {
  kClosed,        ///< the peer's end was closed: its process may have ended
  kRefused,       ///< no process listens at the address any more
  kCorrupted,     ///< bytes that an intact peer never sends
  kStalled,       ///< the peer's kernel is silent; frames may still arrive, and writable() reports a recovery
  kSilent,        ///< the peer's kernel answers, but its process has not answered the handshake yet
  kUnreachable,   ///< no route to the peer
  kUnpaired,      ///< the peer has no rail to pair with this one; final for this rail
  kIncompatible,  ///< the peer cannot be used at all; final
};
std::string_view toString(LossCause cause);

/// Whether two runs of memory share a byte.
inline bool overlaps(ByteView left, ByteView right) {
  return !left.empty() && left.data() < right.data() + right.size() && right.data() < left.data() + left.size();
}

class Transport {
 public:
  struct Capabilities {
    bool isReliable = false;       ///< a frame is delivered unless its connection is reported lost
    bool isAcknowledging = false;  ///< Sink::acknowledged comes for every counted frame
    bool copiesSmall = false;      ///< send() copies the payloads of eager copies and does not read them later
    uint32_t segmentBytes = 0;     ///< payload length that spreads a message of some hundred KiB well
    uint32_t maxPayloadBytes = 0;
  };

  class Sink {
   public:
    /// Returns where the payload of an arriving frame goes: exactly header.length bytes, or an empty span to discard
    /// it. May be called again for a frame whose first copy did not arrive completely.
    virtual std::span<std::byte> place(int peer, const FrameHeader& header) = 0;
    /// The frame is complete and checked; its payload is in the memory that place() returned.
    virtual void arrived(int peer, const FrameHeader& header) = 0;
    /// The peer has received the frame; the transport does not read its payload any more.
    virtual void acknowledged(int peer, uint64_t token) = 0;
    /// canSend(peer) has become true.
    virtual void writable(int peer) = 0;
    /// The connection to the peer is gone, could not be made, stalls, or has no handshake yet (kSilent). A rail may
    /// have lost the frames on it and keeps trying to connect. A stalled connection either recovers with all its frames
    /// or is reported lost again for another cause. A reliable transport has lost the peer.
    virtual void lost(int peer, LossCause cause, const Status& status) = 0;

   protected:
    ~Sink() = default;
  };

  virtual ~Transport() = default;
  /// Capabilities of the route to the peer, which change with the route. Before connect(): the expected ones.
  virtual const Capabilities& capabilities(int peer) const = 0;
  /// Sets the receiver of all events. Called once, before anything else; the sink outlives the transport's use.
  virtual void attach(Sink& sink) = 0;
  /// Requests a connection. Returns at once; writable() or lost() follows.
  virtual void connect(int peer) = 0;
  virtual bool canSend(int peer) const = 0;
  /// Requires: canSend(peer). Never blocks.
  virtual void send(int peer, const OutgoingFrame& frame) = 0;
  /// Sends the frames to the peer that wait (OutgoingFrame::mayWait).
  virtual void flush(int peer) { (void)peer; }
  /// Begins and ends a turn of the event loop. During a turn control frames may wait, so that they leave together.
  virtual void beginTurn() {}
  virtual void endTurn() {}
  /// From now on no byte of `payload` is read for the peer's frames with this token. Such frames in flight continue
  /// with a copy of the payload or without it. Other frames do not change, even if they have the same bytes.
  virtual void cancelSend(int peer, uint64_t token, ByteView payload) = 0;
  /// From now on no byte of `target` is written for this peer: arriving bytes for it are discarded. Cheap if no such
  /// bytes arrive.
  virtual void cancelReceive(int peer, ByteView target) = 0;
  /// Whether everything given to send() has left this process.
  virtual bool isFlushed() const = 0;
  /// Runs timers: reconnecting, detecting stalls. Returns: the latest time for the next call.
  virtual Clock::time_point tick(Clock::time_point now) = 0;
  /// The current route to the peer, for the log: "rail 0 (10.0.0.5 to 10.0.0.6)"; empty if there is none. If a peer
  /// with a route is silent, its process does not answer.
  virtual std::string describeRoute(int peer) const = 0;
  /// For how long the route to the peer has enough bytes in flight to stay busy without attention; 0: not known.
  virtual double coalesceSeconds(int peer) const = 0;
};

}  // namespace agspeed::comm
