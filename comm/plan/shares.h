// SPDX-License-Identifier: Apache-2.0
// How large the chunks of unequal hosts are. Pure; the same for the same figures on every machine of one kind.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "comm/plan/cost_model.h"

namespace agspeed::comm {

/// Relative sizes of the ranks' chunks that let a direct all-reduce end soonest, or nothing where equal ones are as
/// good: rates unknown (0), fewer than three ranks, or no host slower than the fastest by a quarter.
///
/// Rank i of p sends, and receives, N + (p - 2) s_i bytes, s_i being its chunk of a buffer of N: everybody's chunks but
/// its own, then its own to all others. With rate r_i that takes (N + (p - 2) s_i) / r_i; the least time t at which the
/// chunks s_i = max(0, (t r_i - N) / (p - 2)) add up to N is the answer.
std::vector<uint32_t> sharesFor(std::span<const double> bytesPerSecond);

/// The segment of chunks of such sizes, at most `segmentBytes`. The bytes of a slow host are the last of every segment:
/// what quicker ones have under way beyond them only waits, and all of it has to be worked off when the slow one has
/// sent its last. Long paths keep their segments: `window` of them have to last some round trips.
size_t segmentForShares(size_t segmentBytes, uint32_t window, int numRanks, const NetworkMeasurement& network);

}  // namespace agspeed::comm
