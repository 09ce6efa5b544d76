// SPDX-License-Identifier: Apache-2.0
// Verifier: proves that an algorithm is correct for a number of ranks, without sockets or data, and counts its cost.
//
// The verifier executes all ranks' schedules on symbols instead of numbers. A send completes only when its receive has
// been posted. The verifier proves:
// - Every rank gets the values that the collective promises. Each contribution is used exactly once. Canonical
//   algorithms reduce in the canonical order and round once.
// - Every message has one sender, one receiver and one length, and no step waits forever.
// - No step writes memory that another step reads or writes at the same time, even if input and output are the same.
//   Steps write only the caller's output and scratch memory.
// - Algorithms for chunks that may lie anywhere access the caller's chunks one by one.
#pragma once

#include "comm/schedule/catalog.h"
#include "runtime/base/status.h"

namespace agspeed::comm::schedule {

/// The costs of an algorithm, for chunks of equal size. Each member is the maximum over all ranks.
struct ScheduleCounts {
  int numRounds = 0;    ///< messages that must come one after another
  int numMessages = 0;  ///< number of messages that one rank sends
  double sent = 0;      ///< elements that one rank sends, as a share of the whole buffer
  double received = 0;  ///< elements that one rank receives, as a share of the whole buffer
  double reduced = 0;   ///< elements that the reductions of one rank read, as a share of the whole buffer
};

/// Verifies an algorithm for `numRanks` ranks. Returns: its costs, or an error that describes the first violation.
/// Requires: 0 <= root < numRanks; localGroups as in ScheduleRequest.
StatusOr<ScheduleCounts> verify(const Algorithm& algorithm, int numRanks, int root = 0,
                                const std::vector<int>& localGroups = {});
/// Verifies given schedules, one per rank, in the same way.
StatusOr<ScheduleCounts> verify(Collective collective, Order order, int root, const std::vector<Schedule>& schedules);

}  // namespace agspeed::comm::schedule
