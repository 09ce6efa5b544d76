// SPDX-License-Identifier: Apache-2.0
// AckTracker: records which frames have arrived from one peer and where the payloads that are arriving go, and decides
// when an acknowledgement is due.
//
// Every header carries an acknowledgement, so a frame to the peer usually makes a separate one unnecessary (told()). A
// separate one is due when the end of a large message has arrived, because its sender waits for that, and when many
// bytes have arrived. Not thread-safe; no clock of its own.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "comm/transport/multirail/receive_window.h"
#include "comm/transport/transport.h"

namespace agspeed::comm {

class AckTracker {
 public:
  /// An earlier copy of a frame that is arriving on another rail.
  struct Copy {
    int rail = 0;
    ByteView target;
  };

  explicit AckTracker(size_t numRails) : placements_(numRails) {}

  // --- A frame arrives on a rail: begin, takeEarlierCopy, place; end, add ---

  /// Returns: whether the payload is wanted. If two copies of a frame arrive at the same time, the later attempt is
  /// wanted: the sender has given up the connection of the earlier one, which may end at any byte.
  bool begin(int rail, const FrameHeader& header);
  /// After begin(): the earlier copy, which its rail must not write any more. That copy does not count as arrived.
  std::optional<Copy> takeEarlierCopy(const FrameHeader& header);
  /// The payload is written to `target`.
  void place(int rail, const FrameHeader& header, ByteView target);
  /// The frame is complete. Returns: whether it has no payload, or its payload is in the memory given to place().
  bool end(int rail, const FrameHeader& header);
  /// False if the frame has arrived before or its number is beyond the window.
  bool isWanted(uint64_t number) const { return received_.isWanted(number); }
  /// Records that the frame has arrived. Requires: isWanted(header.number).
  void add(const FrameHeader& header);

  /// No byte of `target` may be written any more. Returns: the memory of the payload that is arriving on the rail, if
  /// it overlaps `target`; else nothing. The frame still counts when it has arrived.
  ByteView cancel(int rail, ByteView target);

  // --- Acknowledgements to the peer ---

  /// All frames with lower numbers have arrived. Headers carry this number as acknowledgement.
  uint64_t next() const { return received_.next(); }
  /// Whether next() is higher than the last acknowledgement that was sent.
  bool hasNews() const { return received_.next() > acknowledged_; }
  /// Whether an acknowledgement should be sent now.
  bool isDue() const;
  /// The peer has retransmitted a frame that had arrived: it lacks the acknowledgement.
  void askedAgain();
  /// A frame that acknowledges next() has been sent to the peer.
  void told();
  /// The last acknowledgements may have been lost with their rail.
  void untold();

 private:
  struct Placement {
    uint64_t number = 0;
    uint32_t attempt = 0;
    ByteView target;
  };

  Placement& placementOf(int rail) { return placements_[static_cast<size_t>(rail)]; }

  ReceiveWindow received_;
  std::vector<Placement> placements_;  ///< per rail: the frame that is arriving
  uint64_t acknowledged_ = 1;          ///< the last acknowledgement that was sent
  uint64_t firstDue_ = 0;              ///< number of the first unacknowledged frame that ends a large message; 0: none
  uint64_t lastDue_ = 0;               ///< and of the last one
  static constexpr uint64_t kMinBytesDue = 256 * 1024;
  uint64_t bytesDue_ = 0;            ///< bytes that arrived since the last acknowledgement
  uint64_t mostDue_ = kMinBytesDue;  ///< with this many bytes one is due, even if no large message has ended
};

}  // namespace agspeed::comm
