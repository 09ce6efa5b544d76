// SPDX-License-Identifier: Apache-2.0
// SendWindow: the frames to one peer that were sent and not acknowledged. It numbers them and knows the rail of each. A
// frame must be retransmitted on another rail if its rail was lost, or, on rails that lose frames silently, if it was
// not acknowledged in time.
//
// It sends nothing and does not own payloads. Not thread-safe; no clock of its own.
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
  int rail = kNoRail;         ///< the rail that carries it; kNoRail: it must be retransmitted
  int stalledRail = kNoRail;  ///< while it must be retransmitted: the stalled rail that may still deliver it
  Clock::time_point sentAt{};
};

class SendWindow {
 public:
  SendWindow();

  bool isEmpty() const { return frames_.empty(); }
  /// Whether the receiver's window is full.
  bool isFull() const;
  size_t numToResend() const { return numToResend_; }
  /// The number of the next frame to be added.
  uint64_t end() const { return firstNumber_ + frames_.size(); }

  /// Numbers and adds a frame that is about to be sent on the rail. Returns: the added frame, valid until the next
  /// call. Requires: !isFull().
  const OutgoingFrame& add(const OutgoingFrame& frame, int rail, Clock::time_point now);
  /// Removes and returns the first frame if its number is lower than `next`, the first number that the peer has not
  /// received; else nullopt.
  std::optional<InFlightFrame> acknowledge(uint64_t next);
  /// An acknowledgement has arrived: resets the retransmission timeout to its first value.
  void restartTimeout();

  /// The rail was lost together with its frames. `isStalled`: it may still deliver them.
  void markLost(int rail, bool isStalled);
  /// A stalled rail has recovered: its frames are in flight again, except frames that another rail took meanwhile.
  void reclaim(int rail);
  /// Marks frames lost that were sent longer ago than the timeout. If there are any, the timeout doubles.
  void expire(Clock::time_point now);
  /// The first frame to retransmit; nullptr: none. Valid until the next call.
  InFlightFrame* nextToResend();
  /// The frame that nextToResend() returned is about to be retransmitted on the rail.
  void resend(InFlightFrame& frame, int rail, Clock::time_point now);

  /// Removes the payloads of the frames with this token that overlap `payload`. The frames themselves must still
  /// arrive, because later frames cannot be acknowledged without them.
  void cancel(uint64_t token, ByteView payload);
  void clear();

 private:
  void markLost(InFlightFrame& frame, uint64_t number);

  std::pmr::unsynchronized_pool_resource pool_;    ///< avoids a heap allocation per frame
  std::pmr::deque<InFlightFrame> frames_{&pool_};  ///< frames_[i] has the number firstNumber_ + i
  uint64_t firstNumber_ = 1;
  size_t numToResend_ = 0;
  uint64_t resendFrom_ = 1;  ///< no frame with a lower number must be retransmitted
  Clock::duration timeout_;
};

}  // namespace agspeed::comm
