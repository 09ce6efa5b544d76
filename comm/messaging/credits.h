// SPDX-License-Identifier: Apache-2.0
// Credits: credit-based flow control of eager messages between two ranks, in both directions. It limits the eager bytes
// that are in flight, or that the receiver holds as unexpected messages. Every frame advertises how many eager bytes
// its sender has matched with receives so far. This class does only the arithmetic; SendQueue and ReceiveQueue handle
// the frames. Not thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>

#include "comm/wire/frame_format.h"

namespace agspeed::comm::messaging {

/// The range of sizes of eager zero-copy messages. Most segments of operations are in this range. For a message of such
/// a size, the RTS and CTS of a rendezvous would take long compared with the message itself. For a longer message, the
/// rendezvous adds little in comparison. Messages between 64 and 80 KiB are excluded. The kernel sends at most 64 KiB
/// of a connection at once. The short rest of such a message would then wait behind bytes of other connections. Both
/// ends must agree on these limits, as on the format of frames (kProtocolVersion).
constexpr uint64_t kMinEagerZeroCopyBytes = 80 * 1024, kMaxEagerZeroCopyBytes = 128 * 1024;

/// Whether a message of `bytes` may be sent without a rendezvous, provided that there is credit. For a message that may
/// be shorter than its receive (Transfer::room), `bytes` is the length of the receive. So such an eager message may
/// have any length up to the limit.
constexpr bool mayBeEager(uint64_t bytes) {
  return bytes < wire::kZeroCopyBytes || (bytes >= kMinEagerZeroCopyBytes && bytes <= kMaxEagerZeroCopyBytes);
}

class Credits {
 public:
  static constexpr uint64_t kWindowBytes = 4 * 1024 * 1024;
  /// The part of the window that eager zero-copy messages may use. Messages of an operation that the peer has not
  /// called yet must not block the eager copies of other operations.
  static constexpr uint64_t kZeroCopyWindowBytes = kWindowBytes / 2;
  /// The most bytes by which releasePartial() may enlarge the window in all: six times the eager zero-copy window.
  static constexpr uint64_t kMaxPartialBytes = 6 * kZeroCopyWindowBytes;
  /// A receiver holds at most this many unexpected bytes. A sender without a fault never exceeds this limit.
  static constexpr uint64_t kMaxUnexpectedBytes = kWindowBytes + kMaxPartialBytes;

  // --- for sending

  /// Takes credit for a message. Returns false if the window has no room for it; the message must then wait for a CTS
  /// (rendezvous).
  bool acquire(uint64_t bytes) {
    const uint64_t cost = costOf(bytes);
    const uint64_t window = bytes < wire::kZeroCopyBytes ? kWindowBytes : kZeroCopyWindowBytes;
    if (sent_ + cost > consumedByPeer_ + window) return false;
    sent_ += cost;
    return true;
  }
  /// Returns the credit of a message that was cancelled before any byte of it was sent.
  void release(uint64_t bytes) { sent_ -= costOf(bytes); }
  /// Returns the credit of a message that was cancelled after some of its bytes were sent. The peer may still receive
  /// the whole message and advertise it. The credit then returns twice, which enlarges the window. Therefore this
  /// function returns at most kMaxPartialBytes in all. Beyond this limit, the credit of a message returns only if the
  /// message arrives.
  void releasePartial(uint64_t bytes) {
    if (partial_ + costOf(bytes) > kMaxPartialBytes) return;
    partial_ += costOf(bytes);
    release(bytes);
  }
  /// Takes an advertisement of the peer: the total number of bytes that the peer has matched with receives so far.
  /// Frames may arrive out of order, so a total that is lower than an earlier one is ignored.
  void advertised(uint64_t consumed) { consumedByPeer_ = std::max(consumedByPeer_, consumed); }

  // --- for receiving

  /// Adds a message that was matched with its receive, or that is discarded, to the total to advertise. Returns true if
  /// at least a quarter of the window has not been advertised. The caller must then send a frame with the total, which
  /// this class regards as advertised from now on.
  bool consume(uint64_t bytes) {
    consumed_ += costOf(bytes);
    if (consumed_ - advertised_ < kWindowBytes / 4) return false;
    advertised_ = consumed_;
    return true;
  }
  /// Returns the total to put into a frame that is sent now, and records it as advertised.
  uint64_t advertise() { return advertised_ = consumed_; }
  /// Reserves buffer space for an unexpected message. The bytes count against kMaxUnexpectedBytes until
  /// releaseUnexpected() is called. Returns false if the message does not fit; the peer has then violated the protocol.
  bool holdUnexpected(uint64_t bytes) {
    if (unexpected_ + costOf(bytes) > kMaxUnexpectedBytes) return false;
    unexpected_ += costOf(bytes);
    return true;
  }
  void releaseUnexpected(uint64_t bytes) { unexpected_ -= costOf(bytes); }

 private:
  /// The bytes that each message costs in addition to its length, for its bookkeeping. So the window also limits empty
  /// messages.
  static constexpr uint64_t kMessageCost = 64;
  static uint64_t costOf(uint64_t bytes) { return bytes + kMessageCost; }

  uint64_t sent_ = 0;            ///< cost of all messages sent, minus the credit that release() has returned
  uint64_t partial_ = 0;         ///< credit that releasePartial() has returned
  uint64_t consumedByPeer_ = 0;  ///< the highest total that the peer has advertised
  uint64_t consumed_ = 0;        ///< cost of all messages that consume() has counted
  uint64_t advertised_ = 0;      ///< the part of consumed_ that this rank has advertised
  uint64_t unexpected_ = 0;      ///< cost of the unexpected messages that are held now
};

}  // namespace agspeed::comm::messaging
