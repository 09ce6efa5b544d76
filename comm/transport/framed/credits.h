// SPDX-License-Identifier: Apache-2.0
// Credits: how many bytes may be under way between two ranks that nobody has asked for, before they have found their
// receives, in each direction. Every frame tells its receiver how many of its bytes have. Knows no frames; not
// thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>

#include "comm/transport/frame_format.h"

namespace agspeed::comm::framed {

/// Medium messages, as most segments of operations are: asking would cost about two messages' time, a good part of
/// their own. Shorter ones, little beyond the 64 KiB that a kernel sends at once, have a short end that waits behind
/// other connections' bytes; longer ones take so long that asking costs them little. The two ends must agree on these
/// bounds, as on the format of frames (PeerRecord::kVersion).
constexpr uint64_t kLeastUnasked = 80 * 1024, kMostUnasked = 128 * 1024;

/// Whether a message may be sent before it is asked for, where there is credit.
constexpr bool mayBeUnasked(uint64_t bytes) {
  return bytes < kLargeMessageBytes || (bytes >= kLeastUnasked && bytes <= kMostUnasked);
}

class Credits {
 public:
  static constexpr uint64_t kWindowBytes = 4 * 1024 * 1024;
  /// Of it, what medium messages may take: those of an operation that the peer has not called must not hold up others'
  /// small ones.
  static constexpr uint64_t kWindowOfMedium = kWindowBytes / 2;

  // --- what this rank sends

  /// Whether a message may be sent now; it then counts.
  bool take(uint64_t bytes) {
    const uint64_t cost = bytes + kMessageCost;
    const uint64_t window = bytes < kLargeMessageBytes ? kWindowBytes : kWindowOfMedium;
    if (sent_ + cost > consumedThere_ + window) return false;
    sent_ += cost;
    return true;
  }
  /// A message that counted was cancelled. If it arrives all the same, the peer counts it, too: the window is then
  /// larger by as much.
  void giveBack(uint64_t bytes) { sent_ -= bytes + kMessageCost; }
  /// The peer says how much has found its receives, ever; frames may overtake each other.
  void returned(uint64_t consumed) { consumedThere_ = std::max(consumedThere_, consumed); }

  // --- what it receives

  /// A message has found its receive, or is not wanted any more. Returns: whether the peer must be told now, in a frame
  /// of its own if need be, because it has not been for long; that is then taken as done.
  bool consume(uint64_t bytes) {
    consumed_ += bytes + kMessageCost;
    if (consumed_ - told_ < kWindowBytes / 4) return false;
    told_ = consumed_;
    return true;
  }
  /// What a frame that leaves now tells the peer.
  uint64_t tell() { return told_ = consumed_; }

 private:
  /// What the bookkeeping of a message counts as, so that empty ones are bounded too.
  static constexpr uint64_t kMessageCost = 64;

  uint64_t sent_ = 0;
  uint64_t consumedThere_ = 0;
  uint64_t consumed_ = 0;
  uint64_t told_ = 0;
};

}  // namespace agspeed::comm::framed
