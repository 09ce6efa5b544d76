// SPDX-License-Identifier: Apache-2.0
// Transport: sends frames to peers; comm/messaging builds messages from frames. Capabilities declare the properties of
// the route to a peer. There are two kinds of transport:
//
//   rail        frames may get lost with their connection (rail.h): tcp, faulty
//   reliable    every frame passed to send() arrives exactly once, in any order: multirail, shared memory
//
// Threading: one thread at a time makes all calls. Ownership: the caller owns a payload. The transport reads the
// payload until the frame is acknowledged or its send is cancelled. The Sink is called from within send(), tick() or
// the poller.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "comm/io/clock.h"
#include "comm/wire/frame_format.h"
#include "runtime/base/byte_view.h"
#include "runtime/base/status.h"

namespace agspeed::comm::transport {

/// A frame to send. A transport that numbers frames (multirail) fills in the number and the acknowledgement of the
/// header.
struct OutgoingFrame {
  wire::FrameHeader header;
  ByteView payload;
  uint64_t token = 0;    ///< the value that Sink::acknowledged() gets for this frame
  bool mayWait = false;  ///< the frame may wait for flush(), so that several frames leave in one system call
};

/// Why a connection is lost or cannot be used.
enum class LossCause {
  kClosed,        ///< the peer's end was closed: its process may have ended
  kRefused,       ///< no process listens at the peer's address
  kCorrupted,     ///< the peer has sent bytes that an intact peer never sends
  kStalled,       ///< the peer's kernel is silent; frames may still arrive, and writable() reports a recovery
  kSilent,        ///< the peer's kernel answers, but its process has not answered the handshake yet
  kUnreachable,   ///< no route leads to the peer
  kUnpaired,      ///< the peer has no rail to pair with this one; final for this rail
  kIncompatible,  ///< the peer's record cannot be read, or does not fit this rank (version, key, mode, ...); final
};
std::string_view toString(LossCause cause);

/// Whether two ranges of memory overlap.
inline bool overlaps(ByteView left, ByteView right) {
  return !left.empty() && left.data() < right.data() + right.size() && right.data() < left.data() + left.size();
}

class Transport {
 public:
  struct Capabilities {
    bool isReliable = false;       ///< frames get lost only with a connection whose loss is reported; true for TCP, too
    bool isAcknowledging = false;  ///< Sink::acknowledged is called for every frame with a token
    bool copiesSmall = false;      ///< send() copies payloads of messages below wire::kZeroCopyBytes before it returns
    uint32_t segmentBytes = 0;     ///< payload length at which a message of some hundred KiB spreads well over rails
    uint32_t maxPayloadBytes = 0;
  };

  class Sink {
   public:
    /// Returns where the payload of an arriving frame goes: exactly header.length bytes, or an empty span to discard
    /// it. May be called again for a frame whose first copy did not arrive completely.
    virtual std::span<std::byte> place(int peer, const wire::FrameHeader& header) = 0;
    /// Reports a frame that has arrived completely and passed all checks. Its payload is in the memory that place()
    /// returned.
    virtual void arrived(int peer, const wire::FrameHeader& header) = 0;
    /// Reports that the peer has received a frame with this token. The transport does not read the frame's payload any
    /// more.
    virtual void acknowledged(int peer, uint64_t token) = 0;
    /// Reports that canSend(peer) has become true.
    virtual void writable(int peer) = 0;
    /// Reports that the connection to the peer was closed, could not be made, stalls, or waits for the handshake
    /// (kSilent). If a reliable transport reports this, the peer is lost. If a rail reports it, the frames on the
    /// connection may be lost, and the rail keeps trying to connect. A stalled connection either recovers with all its
    /// frames, or is reported lost again with another cause.
    virtual void lost(int peer, LossCause cause, const Status& status) = 0;

   protected:
    ~Sink() = default;
  };

  virtual ~Transport() = default;
  /// Returns the capabilities of the route to the peer, which change with the route. Before connect(), returns the
  /// expected capabilities.
  virtual const Capabilities& capabilities(int peer) const = 0;
  /// Sets the receiver of all events. Call it once, before all other functions. The sink outlives the transport's use.
  virtual void attach(Sink& sink) = 0;
  /// Requests a connection. Returns at once; writable() or lost() follows.
  virtual void connect(int peer) = 0;
  /// Whether send() may be called for the peer now.
  virtual bool canSend(int peer) const = 0;
  /// Sends a frame to the peer. Requires: canSend(peer). Never blocks.
  virtual void send(int peer, const OutgoingFrame& frame) = 0;
  /// Sends the frames to the peer that have waited because of OutgoingFrame::mayWait.
  virtual void flush(int peer) = 0;
  /// beginTurn() and endTurn() enclose a turn of the event loop. During a turn, control frames may wait, so that they
  /// leave together.
  virtual void beginTurn() = 0;
  virtual void endTurn() = 0;
  /// Makes the transport stop reading `payload` for frames to the peer with this token. Such frames in flight continue
  /// with a copy of the payload or without it. The content of other frames does not change, even if they have the same
  /// bytes.
  virtual void cancelSend(int peer, uint64_t token, ByteView payload) = 0;
  /// Makes the transport stop writing to `target` for this peer: it discards bytes that arrive for this memory. The
  /// call is cheap if no such bytes are arriving.
  virtual void cancelReceive(int peer, ByteView target) = 0;
  /// Whether all frames passed to send() have left this process.
  virtual bool isFlushed() const = 0;
  /// Runs the timers, which reconnect and detect stalls. Returns the latest time for the next call.
  virtual io::Clock::time_point tick(io::Clock::time_point now) = 0;
  /// Describes the current route to the peer for the log, such as "rail 0 (10.0.0.5 to 10.0.0.6)". Returns an empty
  /// text if there is no route. If a peer is silent although there is a route, its process hangs or is busy: the
  /// network works.
  virtual std::string describeRoute(int peer) const = 0;
  /// Returns for how many seconds the caller may ignore wake-ups to handle several events at once. The bytes in flight
  /// keep the route to the peer busy during this time, so the transport needs no call. 0: not known.
  virtual double coalesceSeconds(int peer) const = 0;
};

}  // namespace agspeed::comm::transport
