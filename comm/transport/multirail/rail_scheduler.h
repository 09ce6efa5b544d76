// SPDX-License-Identifier: Apache-2.0
// RailScheduler: which rail takes the next frame for one peer. A frame takes the rail on which it is expected to arrive
// first, beginning with another rail each time where they are alike. Rails take more as the network drains them, so
// quick ones carry more than slow ones. Where some rails are home and others are not, those others carry what home ones
// would deliver much later, and all while no home rail is up.
//
// It asks rails and sends nothing. They outlive it; whether one leads to the peer is in Reachability. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "comm/transport/multirail/reachability.h"
#include "comm/transport/rail.h"

namespace agspeed::comm {

class RailScheduler {
 public:
  /// Payloads that several rails share well, and the longest ones: what comes after a frame waits for it.
  static constexpr uint32_t kSharedBytes = 16 * 1024, kLongBytes = 128 * 1024;
  /// Where rails are so quick that longer ones only save work.
  static constexpr uint32_t kQuickSharedBytes = 64 * 1024;

  RailScheduler(const Rails& rails, int peer);

  /// For a payload of that many bytes, of the rails that can send now; kNoRail: none can.
  int nextRail(size_t numBytes) const;
  /// A frame took that rail.
  void sentOn(int rail) { nextRail_ = (static_cast<size_t>(rail) + 1) % rails_.size(); }

  bool canAnySend() const;
  /// Whether a rail that is full now would still deliver a frame of `numBytes` much sooner than any that is not.
  bool isFullOneWorthWaitingFor(const Reachability& reachability, size_t numBytes) const;
  /// Whether a payload of `numBytes` takes next to no time on any rail that is up.
  bool areAllQuick(const Reachability& reachability, uint32_t numBytes) const;
  /// The longest payload, of at most `maxBytes`, that all rails which are up carry soon.
  uint32_t longestPayload(const Reachability& reachability, uint32_t maxBytes) const;

 private:
  double carrySeconds(size_t rail, uint32_t numBytes) const;
  /// What deliverySeconds() is compared by.
  double cost(size_t rail, size_t numBytes) const;

  const Rails& rails_;
  const int peer_;
  std::vector<bool> isHome_;  ///< by rail
  size_t nextRail_ = 0;
};

}  // namespace agspeed::comm
