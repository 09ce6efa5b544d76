// SPDX-License-Identifier: Apache-2.0
// Which ranks share a host, as schedules want to know it, and what it is good for. Pure; the same for the same figures.
#pragma once

#include <cstdint>
#include <span>

#include "comm/schedule/schedule.h"

namespace agspeed::comm {

/// The largest power of two B such that ranks i B to (i + 1) B - 1 share a host, for every i; 1 where all ranks share
/// one host or not all hosts are known. `hosts`: a number per rank, equal where ranks share a host; 0: not known.
int localGroupSizeOf(std::span<const uint32_t> hosts);

/// Whether less leaves a host by the hierarchical algorithm than by the direct one. Where partial results are twice as
/// wide, local groups of two send as much as their ranks would have.
bool gainsFromLocalGroups(Collective collective, bool isWidened, int localGroupSize);

}  // namespace agspeed::comm
