// SPDX-License-Identifier: Apache-2.0
// Finds which ranks share a host, in the form that schedules need, and decides whether hierarchical algorithms gain
// from it. The functions are pure: equal arguments give equal results.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "comm/schedule/local_groups.h"
#include "comm/schedule/schedule.h"

namespace agspeed::comm::plan {

/// Returns the first rank of each local group. Returns an empty list in three cases: all ranks share one host, no two
/// consecutive ranks share a host, or the host of a rank is not known. `hosts`: a number per rank, equal if ranks share
/// a host; 0: not known.
std::vector<int> localGroupsOf(std::span<const uint32_t> hosts);

/// Compares the bytes that leave the local group that sends most. Returns whether the hierarchical algorithm sends
/// fewer of them than the direct algorithm. `isWidened`: partial results are twice as wide as the data.
bool gainsFromLocalGroups(schedule::Collective collective, bool isWidened, const schedule::LocalGroups& groups);

}  // namespace agspeed::comm::plan
