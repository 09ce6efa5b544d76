// SPDX-License-Identifier: Apache-2.0
// SendWindow: the frames of one peer that were sent and not acknowledged. It numbers them, knows on which rail each of
// them is, and which are to be sent again, on another rail: those whose rail was lost, or that were not acknowledged in
// time on rails that lose frames silently.
//
// It sends nothing. Payloads stay their senders'. Not thread-safe; no clock of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory_resource>
#include <optional>

#include "comm/transport/rail.h"

namespace agspeed::comm {

/// A frame that its receiver has not acknowledged.
struct InFlightFrame {
  OutgoingFrame frame;
  int rail = kNoRail;         ///< where it was sent; kNoRail: to be sent again
  int stalledRail = kNoRail;  ///< then the rail that may deliver it all the same
  Clock::time_point sentAt{};
};

class SendWindow {
 public:
  SendWindow();

  bool isEmpty() const { return frames_.empty(); }
  /// The receiver would take no further frame.
  bool isFull() const;
  size_t numToResend() const { return numToResend_; }
  /// The number of the next frame to be added.
  uint64_t end() const { return firstNumber_ + frames_.size(); }

  /// Adds a frame that is about to be sent on the rail, and numbers it. Returns: it, valid until the next call.
  /// Requires: !isFull().
  const OutgoingFrame& add(const OutgoingFrame& frame, int rail, Clock::time_point now);
  /// Removes the first frame if its number is lower than `next`, which is what the peer waits for; nullopt: it is not.
  std::optional<InFlightFrame> acknowledge(uint64_t next);
  /// Something was acknowledged: the way works, and lost frames are noticed as soon as at first.
  void restartTimeout();

  /// The rail was lost, and with it what it carried. `isStalled`: it may still deliver that.
  void markLost(int rail, bool isStalled);
  /// A stalled rail is back: what it carried and nothing else has carried since is in flight again.
  void reclaim(int rail);
  /// Frames that were sent too long ago count as lost; the next ones get twice that time.
  void expire(Clock::time_point now);
  /// The first frame that is to be sent again; nullptr: none. Valid until the next call.
  InFlightFrame* nextToResend();
  /// What nextToResend() returned is about to be sent again on the rail.
  void resend(InFlightFrame& frame, int rail, Clock::time_point now);

  /// Empties the frames with this token whose payloads lie there. Their numbers must still arrive, or nothing after
  /// them could be acknowledged.
  void cancel(uint64_t token, ByteView payload);
  void clear();

 private:
  void markLost(InFlightFrame& frame, uint64_t number);

  std::pmr::unsynchronized_pool_resource pool_;    ///< so that no frame asks the heap for memory
  std::pmr::deque<InFlightFrame> frames_{&pool_};  ///< frames_[i] has the number firstNumber_ + i
  uint64_t firstNumber_ = 1;
  size_t numToResend_ = 0;
  uint64_t resendFrom_ = 1;  ///< no frame with a lower number is to be sent again
  Clock::duration timeout_;
};

}  // namespace agspeed::comm
