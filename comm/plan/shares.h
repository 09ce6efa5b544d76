// SPDX-License-Identifier: Apache-2.0
// Sizes of chunks for hosts of unequal speed. Pure functions: equal figures give equal results on all machines of one
// kind.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "comm/plan/cost_model.h"

namespace agspeed::comm {

/// Relative sizes of the ranks' chunks that let a direct all-reduce end soonest. Empty if equal chunks are as good: if
/// a rate is unknown (0), with fewer than three ranks, or if no host is slower than the fastest by a quarter.
///
/// Let s_i be rank i's chunk of a buffer of N bytes among p ranks. Rank i sends, and receives, N + (p - 2) s_i bytes:
/// the other ranks' chunks to their owners, then its own chunk to all others. With rate r_i that takes (N + (p - 2)
/// s_i) / r_i. The result is the least time t at which the chunks s_i = max(0, (t r_i - N) / (p - 2)) add up to N.
std::vector<uint32_t> sharesFor(std::span<const double> bytesPerSecond);

/// The segment size for such chunks, at most `segmentBytes`. A slow host's bytes come last in every segment. Bytes of
/// faster ranks beyond them only wait, and have to be processed after the slow host's last byte; short segments limit
/// them. Paths with a large bandwidth-delay product keep long segments, because `window` segments have to last some
/// round trips.
size_t segmentForShares(size_t segmentBytes, uint32_t window, int numRanks, const NetworkMeasurement& network);

}  // namespace agspeed::comm
