// SPDX-License-Identifier: Apache-2.0
// Finds which ranks share a host, in the form that schedules need, and decides whether hierarchical algorithms gain
// from it. The functions are pure: equal figures give equal results.
#pragma once

#include <cstdint>
#include <span>

#include "comm/schedule/schedule.h"

namespace agspeed::comm::plan {

/// Returns the size of local groups: the largest power of two B such that ranks i B to (i + 1) B - 1 share a host, for
/// every i. Returns 1 if all ranks share one host or some host is not known. `hosts`: a number per rank, equal if ranks
/// share a host; 0: not known.
int localGroupSizeOf(std::span<const uint32_t> hosts);

/// Returns whether the hierarchical algorithm sends fewer bytes from each host than the direct one. In a reduce-scatter
/// whose partial results are twice as wide (`isWidened`), a local group of two sends as many bytes as its two ranks
/// would have sent.
bool gainsFromLocalGroups(schedule::Collective collective, bool isWidened, int localGroupSize);

}  // namespace agspeed::comm::plan
