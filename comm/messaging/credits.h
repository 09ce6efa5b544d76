// SPDX-License-Identifier: Apache-2.0
// Credits: credit-based flow control of eager messages between two ranks, for each direction. It limits the eager bytes
// that are in flight or held as unexpected. Every frame advertises to its receiver how many bytes have been matched
// with receives so far. Knows no frames; not thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>

#include "comm/wire/frame_format.h"

namespace agspeed::comm {

/// Sizes of eager zero-copy messages. Most segments of operations have such sizes, and a rendezvous would cost them
/// about the time of two messages, which is a good part of their own time. Messages between 64 and 80 KiB are excluded:
/// a kernel sends 64 KiB at once, and their short end then waits behind other connections' bytes. Longer messages take
/// so long that a rendezvous costs them little. Both ends must agree on these limits, as on the format of frames
/// (kProtocolVersion).
constexpr uint64_t kMinEagerZeroCopyBytes = 80 * 1024, kMaxEagerZeroCopyBytes = 128 * 1024;

/// Whether a message may be sent without a rendezvous if there is credit.
constexpr bool mayBeEager(uint64_t bytes) {
  return bytes < kZeroCopyBytes || (bytes >= kMinEagerZeroCopyBytes && bytes <= kMaxEagerZeroCopyBytes);
}

class Credits {
 public:
  static constexpr uint64_t kWindowBytes = 4 * 1024 * 1024;
  /// The part of the window that eager zero-copy messages may use. Messages of an operation that the peer has not
  /// called must not block the eager copies of other operations.
  static constexpr uint64_t kZeroCopyWindowBytes = kWindowBytes / 2;
  /// The most bytes that messages cancelled midway may add to the window in all: six times the eager zero-copy window.
  static constexpr uint64_t kMaxPartialBytes = 6 * kZeroCopyWindowBytes;
  /// A receiver holds at most this many unexpected bytes; an intact sender never exceeds it.
  static constexpr uint64_t kMaxUnexpectedBytes = kWindowBytes + kMaxPartialBytes;

  // --- for sending

  /// Whether a message may be sent now. If so, it counts against the window.
  bool acquire(uint64_t bytes) {
    const uint64_t cost = costOf(bytes);
    const uint64_t window = bytes < kZeroCopyBytes ? kWindowBytes : kZeroCopyWindowBytes;
    if (sent_ + cost > consumedThere_ + window) return false;
    sent_ += cost;
    return true;
  }
  /// A message that counted was cancelled before any byte of it was sent.
  void release(uint64_t bytes) { sent_ -= costOf(bytes); }
  /// A message that counted was cancelled midway. Its credit is released, which enlarges the window: the peer may hold
  /// the part that arrived, or receive and advertise the whole message, too. Beyond kMaxPartialBytes in all, credit is
  /// not released here; it returns only if the message still arrives.
  void releasePartial(uint64_t bytes) {
    if (partial_ + costOf(bytes) > kMaxPartialBytes) return;
    partial_ += costOf(bytes);
    release(bytes);
  }
  /// The peer advertises the total of bytes matched with its receives so far. The maximum counts, because frames may
  /// overtake each other.
  void advertised(uint64_t consumed) { consumedThere_ = std::max(consumedThere_, consumed); }

  // --- for receiving

  /// A message was matched with its receive or is not wanted any more. Returns: whether the caller must advertise the
  /// total now, in a separate frame if necessary, because a quarter of the window is not advertised yet. The total then
  /// counts as advertised.
  bool consume(uint64_t bytes) {
    consumed_ += costOf(bytes);
    if (consumed_ - advertised_ < kWindowBytes / 4) return false;
    advertised_ = consumed_;
    return true;
  }
  /// The total to put into a frame that is sent now.
  uint64_t advertise() { return advertised_ = consumed_; }
  /// Whether an unexpected message may be held. If so, it counts until it is released. If not, the peer has exceeded
  /// its window.
  bool holdUnexpected(uint64_t bytes) {
    if (unexpected_ + costOf(bytes) > kMaxUnexpectedBytes) return false;
    unexpected_ += costOf(bytes);
    return true;
  }
  void releaseUnexpected(uint64_t bytes) { unexpected_ -= costOf(bytes); }

 private:
  /// The cost of a message's bookkeeping, so that empty messages are limited, too.
  static constexpr uint64_t kMessageCost = 64;
  static uint64_t costOf(uint64_t bytes) { return bytes + kMessageCost; }

  uint64_t sent_ = 0;
  uint64_t partial_ = 0;
  uint64_t consumedThere_ = 0;
  uint64_t consumed_ = 0;
  uint64_t advertised_ = 0;
  uint64_t unexpected_ = 0;
};

}  // namespace agspeed::comm
