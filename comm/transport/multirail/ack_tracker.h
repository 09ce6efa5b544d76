// SPDX-License-Identifier: Apache-2.0
// AckTracker: records which frames of one peer have arrived, and into which memory the arriving payloads are written.
// It decides when an acknowledgement is due.
//
// Every header carries an acknowledgement, so a frame to the peer usually makes a separate acknowledgement unnecessary
// (ackSent()). A separate acknowledgement is due in two cases. The first is the arrival of the end of a large message,
// because its sender waits for the acknowledgement. The second is the arrival of many bytes. Not thread-safe; no clock
// of its own.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "comm/transport/multirail/receive_window.h"
#include "comm/transport/transport.h"

namespace agspeed::comm::multirail {

class AckTracker {
 public:
  /// A copy of a frame that was arriving on `rail`, into `target`, when a later copy began to arrive on another rail.
  struct Copy {
    int rail = 0;
    ByteView target;
  };

  explicit AckTracker(size_t numRails) : placements_(numRails) {}

  // --- Arrival of a frame: begin(), takeEarlierCopy(), place() at its header; end(), add() at its end ---

  /// Begins a frame whose header has arrived on `rail`. Returns true if its payload is wanted. Two copies of a frame
  /// may arrive at the same time. Then only the payload of the later attempt is wanted. The sender has given up the
  /// connection of the earlier attempt, which may be closed at any byte.
  bool begin(int rail, const wire::FrameHeader& header);
  /// Removes and returns the earlier copy of the frame, if one is arriving on another rail. That rail must not write to
  /// the copy's target any more, and the copy is not recorded as arrived. Call this function after begin().
  std::optional<Copy> takeEarlierCopy(const wire::FrameHeader& header);
  /// Records that the frame's payload is being written to `target`.
  void place(int rail, const wire::FrameHeader& header, ByteView target);
  /// Call it when the last byte of a frame has arrived on `rail`. Returns true if the frame has no payload, or if its
  /// payload was written to the target of place(). Returns false if the payload was cancelled meanwhile.
  bool end(int rail, const wire::FrameHeader& header);
  /// Returns false if the frame has arrived before, or if its number is beyond the window.
  bool isWanted(uint64_t number) const { return received_.isWanted(number); }
  /// Records that the frame has arrived. Requires: isWanted(header.number).
  void add(const wire::FrameHeader& header);

  /// Cancels the payload that is arriving on the rail if its memory overlaps `target`. Returns the memory of this
  /// payload, or an empty view if nothing was cancelled. The caller must make the rail stop writing to the returned
  /// memory. The frame is still recorded as arrived when it is complete.
  ByteView cancel(int rail, ByteView target);

  // --- Acknowledgements to the peer ---

  /// Returns the first number that has not arrived. All frames with lower numbers have arrived. Headers carry this
  /// number as acknowledgement.
  uint64_t next() const { return received_.next(); }
  /// Whether next() is higher than the last acknowledgement that was sent.
  bool hasUnsentAck() const { return received_.next() > acknowledged_; }
  /// Whether a separate acknowledgement should be sent now.
  bool isDue() const;
  /// Records that the peer has retransmitted frame `number`, which had already arrived. The peer has not received the
  /// acknowledgement of this frame, so an acknowledgement is due at once, although one may have been sent.
  void duplicateSeen(uint64_t number);
  /// Records that a frame that acknowledges next() was sent to the peer.
  void ackSent();
  /// Records that the last acknowledgements may have been lost with their rail, so that they must be sent again.
  void ackMayBeLost();

 private:
  struct Placement {
    uint64_t number = 0;
    uint32_t attempt = 0;
    ByteView target;
  };

  Placement& placementOf(int rail) { return placements_[static_cast<size_t>(rail)]; }

  ReceiveWindow received_;
  std::vector<Placement> placements_;  ///< placements_[rail]: the frame that is arriving there
  uint64_t acknowledged_ = 1;          ///< the value of next() in the last acknowledgement that was sent
  uint64_t firstDue_ = 0;              ///< number of the first unacknowledged frame that ends a large message; 0: none
  uint64_t lastDue_ = 0;               ///< number of the last frame that ends a large message
  static constexpr uint64_t kMinBytesDue = 256 * 1024;
  uint64_t bytesDue_ = 0;            ///< payload bytes that arrived since the last acknowledgement
  uint64_t mostDue_ = kMinBytesDue;  ///< an acknowledgement is due when bytesDue_ reaches this limit
};

}  // namespace agspeed::comm::multirail
