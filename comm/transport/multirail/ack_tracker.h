// SPDX-License-Identifier: Apache-2.0
// AckTracker: what has arrived from one peer, where the payloads that arrive now go, and whether the peer is to be
// told.
//
// Acknowledgements travel in every header, so most frames that go to the peer make one of their own unnecessary
// (told()). One is due when the end of a large message has arrived, whose sender waits for it, and when many bytes
// have. Not thread-safe; no clock of its own.
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

  /// Returns: whether its payload is wanted. Of two copies that arrive at once the later attempt counts: its sender has
  /// given up the connection of the other, which may end at any byte.
  bool begin(int rail, const FrameHeader& header);
  /// The copy, after begin(), that the rail must not write any more. It does not count when it is complete.
  std::optional<Copy> takeEarlierCopy(const FrameHeader& header);
  /// Its payload goes there.
  void place(int rail, const FrameHeader& header, ByteView target);
  /// It is complete. Returns: whether it has no payload, or stands where place() said.
  bool end(int rail, const FrameHeader& header);
  /// Whether the frame is neither here already nor impossibly far ahead.
  bool isWanted(uint64_t number) const { return received_.isWanted(number); }
  /// It has arrived. Requires: isWanted(header.number).
  void add(const FrameHeader& header);

  /// The bytes are not to be written any more. Returns: where the rail's payload goes if it is there, else nothing. Its
  /// number still counts when it has arrived.
  ByteView cancel(int rail, ByteView target);

  // --- What the peer is to be told ---

  /// The number below which all have arrived: what a header acknowledges.
  uint64_t next() const { return received_.next(); }
  /// Whether the peer has not been told all.
  bool hasNews() const { return received_.next() > acknowledged_; }
  /// Whether its sender may be waiting for what could not be said yet.
  bool isDue() const;
  /// The peer has sent something again: it does not know.
  void askedAgain();
  /// A frame with next() is on its way to the peer.
  void told();
  /// It may have been lost with its rail.
  void untold();

 private:
  struct Placement {
    uint64_t number = 0;
    uint32_t attempt = 0;
    ByteView target;
  };

  Placement& placementOf(int rail) { return placements_[static_cast<size_t>(rail)]; }

  ReceiveWindow received_;
  std::vector<Placement> placements_;  ///< per rail: the frame that arrives now
  uint64_t acknowledged_ = 1;          ///< what the peer was last told
  uint64_t firstDue_ = 0;              ///< ends of large messages the peer waits to hear of: the first and the last
  uint64_t lastDue_ = 0;
  static constexpr uint64_t kMinBytesDue = 256 * 1024;
  uint64_t bytesDue_ = 0;            ///< that the peer has not heard of
  uint64_t mostDue_ = kMinBytesDue;  ///< from then on that is due though nobody waits for it
};

}  // namespace agspeed::comm
