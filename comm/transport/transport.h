// SPDX-License-Identifier: Apache-2.0
// Transport: frames to peers. Messages are made of them by comm/messaging. What the way to a peer can do is declared in
// Capabilities; two kinds matter:
//
//   rail        frames may get lost with their connection (rail.h): tcp, faulty
//   reliable    every counted frame arrives exactly once, in any order: multirail, shared memory
//
// Threading: one thread at a time drives everything. Ownership: a payload stays its sender's; the transport reads it
// until the frame is acknowledged or its send cancelled. Calls of the Sink come from within send(), tick() or the
// poller.
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

/// A frame to send. Its number and what it acknowledges are filled in by a transport that counts (multirail).
struct OutgoingFrame {
  FrameHeader header;
  ByteView payload;
  uint64_t token = 0;    ///< comes back with the acknowledgement
  bool mayWait = false;  ///< for flush(), so that several leave in one system call
};

/// Why frames can get lost.
enum class LossCause {
  kClosed,        ///< the peer's end was closed: its process may have ended
  kRefused,       ///< nobody listens there any more
  kCorrupted,     ///< bytes that no intact peer sends
  kStalled,       ///< no sign of the peer's kernel; what was sent may still arrive, and writable() says so
  kSilent,        ///< its kernel answers, its process does not yet
  kUnreachable,   ///< no way to the peer
  kUnpaired,      ///< the peer has no rail for this one, which is of no use to it; final
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
    bool copiesSmall = false;      ///< payloads of eager copies are not read any more after send()
    uint32_t segmentBytes = 0;     ///< payload that spreads a message of some hundred KiB well
    uint32_t maxPayloadBytes = 0;
  };

  class Sink {
   public:
    /// Where the payload of an arriving frame goes: exactly header.length bytes, or nothing to discard it. May be
    /// called again for a frame whose first copy did not arrive whole.
    virtual std::span<std::byte> place(int peer, const FrameHeader& header) = 0;
    /// The frame is complete and checked; its payload stands where place() said.
    virtual void arrived(int peer, const FrameHeader& header) = 0;
    /// The peer has received the frame; its payload is not read any more.
    virtual void acknowledged(int peer, uint64_t token) = 0;
    /// canSend(peer) has become true.
    virtual void writable(int peer) = 0;
    /// The connection to the peer is gone, could not be made, stalls, or has no handshake yet (kSilent). Rail: frames
    /// on it may be lost, the rail goes on trying. A stalled one comes back with all of them, or is lost again for
    /// another cause. Reliable transports: the peer is lost.
    virtual void lost(int peer, LossCause cause, const Status& status) = 0;

   protected:
    ~Sink() = default;
  };

  virtual ~Transport() = default;
  /// Of the way to the peer; they may change with it. Before connect(): what may be expected.
  virtual const Capabilities& capabilities(int peer) const = 0;
  /// Who gets what arrives. Called once, before anything else; the sink outlives the transport's use.
  virtual void attach(Sink& sink) = 0;
  /// Wants a connection from now on. Returns at once; writable() or lost() follow.
  virtual void connect(int peer) = 0;
  virtual bool canSend(int peer) const = 0;
  /// Requires: canSend(peer). Never blocks.
  virtual void send(int peer, const OutgoingFrame& frame) = 0;
  /// Frames of the peer that wait for others leave now. Transports whose frames never wait have nothing to do.
  virtual void flush(int peer) { (void)peer; }
  /// A turn begins, or has ended: until then control frames may wait for each other.
  virtual void beginTurn() {}
  virtual void endTurn() {}
  /// From now on no byte of `payload` is read for the peer's frames with this token; what is under way of them goes on
  /// with a copy or ends without it. No other frame is changed, also of the same bytes.
  virtual void cancelSend(int peer, uint64_t token, ByteView payload) = 0;
  /// From now on no byte of `target` is written for this peer: what still comes for it is thrown away. Costs little
  /// where nothing does.
  virtual void cancelReceive(int peer, ByteView target) = 0;
  /// Whether everything given to send() has left this process.
  virtual bool isFlushed() const = 0;
  /// Timers: connecting again, watching for stalls. Returns: when it wants to be called again at the latest.
  virtual Clock::time_point tick(Clock::time_point now) = 0;
  /// What connects this rank with the peer now, for the log: "rail 0 (10.0.0.5 to 10.0.0.6)"; empty while nothing does.
  /// Its silence is then its process's.
  virtual std::string describeRoute(int peer) const = 0;
  /// For how long the way to the peer may be left alone and still has enough to carry; 0 when not known.
  virtual double coalesceSeconds(int peer) const = 0;
};

}  // namespace agspeed::comm
