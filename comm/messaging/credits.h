// SPDX-License-Identifier: Apache-2.0
// Credits: credit-based flow control of eager messages between two ranks, in each direction: how many of their bytes
// may be under way before they have found their receives. Every frame advertises to its receiver how many have. Knows
// no frames; not thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>

#include "comm/wire/frame_format.h"

namespace agspeed::comm {

/// Eager zero-copy messages, as most segments of operations are: a rendezvous would cost about two messages' time, a
/// good part of their own. Shorter ones, little beyond the 64 KiB that a kernel sends at once, have a short end that
/// waits behind other connections' bytes; longer ones take so long that a rendezvous costs them little. The two ends
/// must agree on these bounds, as on the format of frames (kProtocolVersion).
constexpr uint64_t kMinEagerZeroCopyBytes = 80 * 1024, kMaxEagerZeroCopyBytes = 128 * 1024;

/// Whether a message may be sent without a rendezvous, where there is credit.
constexpr bool mayBeEager(uint64_t bytes) {
  return bytes < kZeroCopyBytes || (bytes >= kMinEagerZeroCopyBytes && bytes <= kMaxEagerZeroCopyBytes);
}

class Credits {
 public:
  static constexpr uint64_t kWindowBytes = 4 * 1024 * 1024;
  /// Of it, what eager zero-copy messages may take: those of an operation that the peer has not called must not hold up
  /// others' eager copies.
  static constexpr uint64_t kZeroCopyWindowBytes = kWindowBytes / 2;
  /// What messages that were cancelled midway may add to the window in all: six times all that can be under way then.
  static constexpr uint64_t kMaxPartialBytes = 6 * kZeroCopyWindowBytes;
  /// So many unexpected bytes a receiver holds; an intact sender keeps to it.
  static constexpr uint64_t kMaxUnexpectedBytes = kWindowBytes + kMaxPartialBytes;

  // --- what this rank sends

  /// Whether a message may be sent now; it then counts.
  bool acquire(uint64_t bytes) {
    const uint64_t cost = costOf(bytes);
    const uint64_t window = bytes < kZeroCopyBytes ? kWindowBytes : kZeroCopyWindowBytes;
    if (sent_ + cost > consumedThere_ + window) return false;
    sent_ += cost;
    return true;
  }
  /// A message that counted was cancelled before any of it was sent.
  void release(uint64_t bytes) { sent_ -= costOf(bytes); }
  /// The same midway. The peer may hold what has come of it, or get all of it and count it, too: the window is then
  /// larger by as much. Beyond what a peer bears the credit comes back only if the message arrives all the same.
  void releasePartial(uint64_t bytes) {
    if (partial_ + costOf(bytes) > kMaxPartialBytes) return;
    partial_ += costOf(bytes);
    release(bytes);
  }
  /// The peer advertises how much has found its receives, ever; frames may overtake each other.
  void advertised(uint64_t consumed) { consumedThere_ = std::max(consumedThere_, consumed); }

  // --- what it receives

  /// A message has found its receive, or is not wanted any more. Returns: whether that must be advertised now, in a
  /// frame of its own if need be, because it has not been for long; that is then taken as done.
  bool consume(uint64_t bytes) {
    consumed_ += costOf(bytes);
    if (consumed_ - advertised_ < kWindowBytes / 4) return false;
    advertised_ = consumed_;
    return true;
  }
  /// What a frame that leaves now advertises to the peer.
  uint64_t advertise() { return advertised_ = consumed_; }
  /// Whether an unexpected message may be held; it then counts until it is released. Otherwise the peer does not keep
  /// to its window.
  bool holdUnexpected(uint64_t bytes) {
    if (unexpected_ + costOf(bytes) > kMaxUnexpectedBytes) return false;
    unexpected_ += costOf(bytes);
    return true;
  }
  void releaseUnexpected(uint64_t bytes) { unexpected_ -= costOf(bytes); }

 private:
  /// What the bookkeeping of a message counts as, so that empty ones are bounded too.
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
