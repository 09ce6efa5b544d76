// SPDX-License-Identifier: Apache-2.0
// RailScheduler: chooses the rail for the next frame to one peer. A frame takes the rail on which it is expected to
// arrive first; equal rails take turns. Rails accept more frames as the network drains them, so fast rails carry more
// than slow ones. Rails that are not home carry a frame only if home rails would deliver it much later, or if no home
// rail can send.
//
// It queries rails and sends nothing. The rails outlive it. Reachability knows which rails lead to the peer. Not
// thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "comm/transport/multirail/reachability.h"
#include "comm/transport/rail.h"

namespace agspeed::comm {

class RailScheduler {
 public:
  /// The payload length with which several rails share a message well, and the longest one, because later frames wait
  /// for a long frame.
  static constexpr uint32_t kSharedBytes = 16 * 1024, kLongBytes = 128 * 1024;
  /// The payload length for sharing if all rails are fast (areAllQuick), where longer frames only save work.
  static constexpr uint32_t kQuickSharedBytes = 64 * 1024;

  RailScheduler(const Rails& rails, int peer);

  /// The best rail for a payload of `numBytes` among the rails that can send now; kNoRail: none can.
  int nextRail(size_t numBytes) const;
  /// Records that a frame took that rail.
  void sentOn(int rail) { nextRail_ = (static_cast<size_t>(rail) + 1) % rails_.size(); }

  bool canAnySend() const;
  /// Whether a full rail would still deliver a frame of `numBytes` much sooner than any rail with room.
  bool isFullOneWorthWaitingFor(const Reachability& reachability, size_t numBytes) const;
  /// Whether every rail that is up carries a payload of `numBytes` within 1 ms.
  bool areAllQuick(const Reachability& reachability, uint32_t numBytes) const;
  /// The longest payload, at most `maxBytes`, that every rail that is up carries within 8 ms.
  uint32_t longestPayload(const Reachability& reachability, uint32_t maxBytes) const;

 private:
  double carrySeconds(size_t rail, uint32_t numBytes) const;
  /// The value by which rails are compared: deliverySeconds(), higher for rails that are not home.
  double cost(size_t rail, size_t numBytes) const;

  const Rails& rails_;
  const int peer_;
  std::vector<bool> isHome_;  ///< by rail
  size_t nextRail_ = 0;
};

}  // namespace agspeed::comm
