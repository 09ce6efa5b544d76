// SPDX-License-Identifier: Apache-2.0
// RailScheduler: chooses the rail for the next frame to one peer. A frame takes the rail on which it is expected to
// arrive first; equal rails take turns. Rails accept more frames as the network drains them, so fast rails carry more
// than slow ones. Rails with RailOptions::isHome are preferred. Another rail carries a frame only if it would deliver
// the frame much earlier, or if no preferred rail can send.
//
// It queries rails and sends nothing. The rails outlive it. Reachability records which rails lead to the peer. Not
// thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "comm/transport/multirail/reachability.h"
#include "comm/transport/rail.h"

namespace agspeed::comm::multirail {

class RailScheduler {
 public:
  /// kSharedBytes: the payload length with which a message spreads well over several rails. kLongBytes: the longest
  /// payload if not all rails are fast. Later frames have to wait behind a long frame on a slow rail.
  static constexpr uint32_t kSharedBytes = 16 * 1024, kLongBytes = 128 * 1024;
  /// Replaces kSharedBytes if all rails are fast (areAllQuick()). Longer frames then save work and have no drawback.
  static constexpr uint32_t kQuickSharedBytes = 64 * 1024;

  RailScheduler(const transport::Rails& rails, int peer);

  /// Returns the best rail for a payload of `numBytes` among the rails that can send now, or kNoRail if none can send.
  int nextRail(size_t numBytes) const;
  /// Records that a frame was sent on the rail. Among equal rails, nextRail() prefers the rail after it.
  void sentOn(int rail) { nextRail_ = (static_cast<size_t>(rail) + 1) % rails_.size(); }

  bool canAnySend() const;
  /// Whether a frame of `numBytes` should wait for a full rail, because it would deliver the frame much sooner than any
  /// rail with room.
  bool isFullOneWorthWaitingFor(const Reachability& reachability, size_t numBytes) const;
  /// Whether all rails are fast: each rail that is up carries a payload of `numBytes` within 1 ms.
  bool areAllQuick(const Reachability& reachability, uint32_t numBytes) const;
  /// Returns the length of the longest payload that each rail that is up carries within 8 ms. The result is at least
  /// kSharedBytes and at most `maxBytes`. If the rails differ much in speed, it is at most 64 KiB.
  uint32_t longestPayload(const Reachability& reachability, uint32_t maxBytes) const;

 private:
  /// Estimates how long the rail takes to carry `numBytes` alone, without the latency and the bytes already in flight.
  double carrySeconds(size_t rail, uint32_t numBytes) const;
  /// Returns the value by which rails are compared: the estimated delivery time in seconds, increased for rails that
  /// are not preferred.
  double cost(size_t rail, size_t numBytes) const;

  const transport::Rails& rails_;
  const int peer_;
  std::vector<bool> isHome_;  ///< isHome_[rail]
  size_t nextRail_ = 0;
};

}  // namespace agspeed::comm::multirail
