// SPDX-License-Identifier: Apache-2.0
// Proves an algorithm right for a number of ranks, without sockets or data, and counts what it costs.
//
// All ranks' schedules are executed on symbols instead of numbers, with sends that end only when their receive is
// there. Proved: every rank ends with the values that the collective promises, each contribution exactly once and, for
// canonical algorithms, in the canonical order with one rounding; every message has one sender, one receiver and one
// length; nothing waits forever; memory that a step reads or writes is never written by another at the same time, also
// where input and output are the same; nothing but the caller's output is written.
#pragma once

#include "comm/schedule/catalog.h"
#include "runtime/base/status.h"

namespace agspeed::comm {

/// The costliest rank's figures, for chunks of equal size.
struct ScheduleCounts {
  int numRounds = 0;    ///< messages that must come one after another
  int numMessages = 0;  ///< sent by one rank
  double sent = 0;      ///< elements sent by one rank, as a share of the whole buffer
  double received = 0;  ///< elements received by one rank
  double reduced = 0;   ///< elements read by the reductions of one rank
};

/// The counts of a correct algorithm, or a sentence on the first thing that is wrong. Requires: 0 <= root < numRanks;
/// localGroupSize as in ScheduleRequest.
StatusOr<ScheduleCounts> verify(const Algorithm& algorithm, int numRanks, int root = 0, int localGroupSize = 1);
/// The same for schedules at hand, one per rank.
StatusOr<ScheduleCounts> verify(Collective collective, Order order, int root, const std::vector<Schedule>& schedules);

}  // namespace agspeed::comm
