// SPDX-License-Identifier: Apache-2.0
// Credits: how many bytes may be under way between two ranks that nobody has asked for, before they have found their
// receives, in each direction. Every frame tells its receiver how many of its bytes have. Knows no frames; not
// thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>

#include "comm/wire/frame_format.h"

namespace agspeed::comm::framed {

/// Medium messages, as most segments of operations are: asking would cost about two messages' time, a good part of
/// their own. Shorter ones, little beyond the 64 KiB that a kernel sends at once, have a short end that waits behind
/// other connections' bytes; longer ones take so long that asking costs them little. The two ends must agree on these
/// bounds, as on the format of frames (kProtocolVersion).
constexpr uint64_t kMinEagerZeroCopyBytes = 80 * 1024, kMaxEagerZeroCopyBytes = 128 * 1024;

/// Whether a message may be sent before it is asked for, where there is credit.
constexpr bool mayBeEager(uint64_t bytes) {
  return bytes < kZeroCopyBytes || (bytes >= kMinEagerZeroCopyBytes && bytes <= kMaxEagerZeroCopyBytes);
}

class Credits {
 public:
  static constexpr uint64_t kWindowBytes = 4 * 1024 * 1024;
  /// Of it, what medium messages may take: those of an operation that the peer has not called must not hold up others'
  /// small ones.
  static constexpr uint64_t kWindowOfMedium = kWindowBytes / 2;
  /// What messages that were cancelled midway may add to the window in all: six times all that can be under way then.
  static constexpr uint64_t kMostStrayBytes = 6 * kWindowOfMedium;
  /// So much of what nobody waits for a receiver keeps; an intact sender keeps to it.
  static constexpr uint64_t kMaxUnexpectedBytes = kWindowBytes + kMostStrayBytes;

  // --- what this rank sends

  /// Whether a message may be sent now; it then counts.
  bool take(uint64_t bytes) {
    const uint64_t cost = costOf(bytes);
    const uint64_t window = bytes < kZeroCopyBytes ? kWindowBytes : kWindowOfMedium;
    if (sent_ + cost > consumedThere_ + window) return false;
    sent_ += cost;
    return true;
  }
  /// A message that counted was cancelled before any of it was sent.
  void giveBack(uint64_t bytes) { sent_ -= costOf(bytes); }
  /// The same midway. The peer may keep what has come of it, or get all of it and count it, too: the window is then
  /// larger by as much. Beyond what a peer bears the credit comes back only if the message arrives all the same.
  void giveBackStray(uint64_t bytes) {
    if (stray_ + costOf(bytes) > kMostStrayBytes) return;
    stray_ += costOf(bytes);
    giveBack(bytes);
  }
  /// The peer says how much has found its receives, ever; frames may overtake each other.
  void returned(uint64_t consumed) { consumedThere_ = std::max(consumedThere_, consumed); }

  // --- what it receives

  /// A message has found its receive, or is not wanted any more. Returns: whether the peer must be told now, in a frame
  /// of its own if need be, because it has not been for long; that is then taken as done.
  bool consume(uint64_t bytes) {
    consumed_ += costOf(bytes);
    if (consumed_ - told_ < kWindowBytes / 4) return false;
    told_ = consumed_;
    return true;
  }
  /// What a frame that leaves now tells the peer.
  uint64_t tell() { return told_ = consumed_; }
  /// Whether a message that nobody waits for may be kept; it then counts until it is let go. Otherwise the peer does
  /// not keep to its window.
  bool keep(uint64_t bytes) {
    if (kept_ + costOf(bytes) > kMaxUnexpectedBytes) return false;
    kept_ += costOf(bytes);
    return true;
  }
  void letGo(uint64_t bytes) { kept_ -= costOf(bytes); }

 private:
  /// What the bookkeeping of a message counts as, so that empty ones are bounded too.
  static constexpr uint64_t kMessageCost = 64;
  static uint64_t costOf(uint64_t bytes) { return bytes + kMessageCost; }

  uint64_t sent_ = 0;
  uint64_t stray_ = 0;
  uint64_t consumedThere_ = 0;
  uint64_t consumed_ = 0;
  uint64_t told_ = 0;
  uint64_t kept_ = 0;
};

}  // namespace agspeed::comm::framed
