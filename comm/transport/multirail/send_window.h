// SPDX-License-Identifier: Apache-2.0
// SendWindow: keeps the frames to one peer that were sent and are not acknowledged. It numbers frames and records the
// rail of each. A frame must be retransmitted if its rail was lost. On rails that lose frames silently, it must also be
// retransmitted if it was not acknowledged in time.
//
// It sends nothing and does not own payloads. Not thread-safe; no clock of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory_resource>
#include <optional>
#include <vector>

#include "comm/transport/rail.h"

namespace agspeed::comm::multirail {

/// A frame that its receiver has not acknowledged.
struct InFlightFrame {
  transport::OutgoingFrame frame;
  int rail = transport::kNoRail;  ///< the rail that carries the frame; kNoRail: the frame must be retransmitted
  int stalledRail =
      transport::kNoRail;  ///< while the frame waits for retransmission: the stalled rail that may still deliver it
  io::Clock::time_point sentAt{};
};

class SendWindow {
 public:
  SendWindow();

  bool isEmpty() const { return frames_.empty(); }
  /// Whether the receiver's window has no room for another frame: ReceiveWindow::kFrames frames are not acknowledged.
  bool isFull() const;
  size_t numToResend() const { return numToResend_; }
  /// Returns the number that the next added frame gets.
  uint64_t end() const { return firstNumber_ + frames_.size(); }

  /// Numbers and adds a frame that is about to be sent on the rail. Returns the added frame, which is valid until the
  /// next call. Requires: !isFull().
  const transport::OutgoingFrame& add(const transport::OutgoingFrame& frame, int rail, io::Clock::time_point now);
  /// Removes and returns the first frame if its number is lower than `next`, the first number that the peer has not
  /// received. Otherwise returns nullopt.
  std::optional<InFlightFrame> acknowledge(uint64_t next);
  /// Resets the retransmission timeout to its first value, because an acknowledgement has arrived.
  void restartTimeout();

  /// Marks the frames on a lost rail for retransmission. `isStalled`: the rail may still deliver these frames.
  void markLost(int rail, bool isStalled);
  /// Marks the frames on a stalled rail as in flight again, because the rail has recovered. Frames that another rail
  /// has taken meanwhile do not change.
  void reclaim(int rail);
  /// Marks frames for retransmission that were sent longer ago than the timeout. If there are any, doubles the timeout.
  void expire(io::Clock::time_point now);
  /// Returns the first frame to retransmit, or nullptr if there is none. The frame is valid until the next call.
  InFlightFrame* nextToResend();
  /// Records that a frame that nextToResend() has returned is about to be retransmitted on the rail.
  void resend(InFlightFrame& frame, int rail, io::Clock::time_point now);

  /// Adds the payload lengths of the frames in flight to `numBytes`, by rail. Frames to retransmit have no rail.
  void addBytesInFlight(std::vector<uint64_t>& numBytes) const;

  /// Removes the payloads of the frames with this token that overlap `payload`. The frames themselves must still
  /// arrive, because later frames cannot be acknowledged without them.
  void cancel(uint64_t token, ByteView payload);
  /// Drops all frames, because the peer is lost.
  void clear();

 private:
  /// Marks the frame with this number for retransmission.
  void markLost(InFlightFrame& frame, uint64_t number);

  std::pmr::unsynchronized_pool_resource pool_;    ///< avoids a heap allocation per frame
  std::pmr::deque<InFlightFrame> frames_{&pool_};  ///< frames_[i] has the number firstNumber_ + i
  uint64_t firstNumber_ = 1;
  size_t numToResend_ = 0;
  uint64_t resendFrom_ = 1;  ///< frames with lower numbers need no retransmission
  io::Clock::duration timeout_;
};

}  // namespace agspeed::comm::multirail
