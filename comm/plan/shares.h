// SPDX-License-Identifier: Apache-2.0
// Computes chunk sizes for hosts of unequal speed. The functions are pure: equal arguments give equal results on all
// machines with the same floating-point arithmetic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "comm/plan/cost_model.h"

namespace agspeed::comm::plan {

/// Returns the relative sizes of the ranks' chunks with which a direct all-reduce takes the least time. Returns an
/// empty list, which means equal chunks, in three cases: a rate is not known (0), there are fewer than three ranks, or
/// every rate is at least three quarters of the highest rate.
///
/// Let s_i be rank i's chunk of a buffer of N bytes among p ranks. Rank i sends, and receives, N + (p - 2) s_i bytes:
/// the other ranks' chunks to their owners, then its own chunk to all others. With rate r_i, this takes (N + (p - 2)
/// s_i) / r_i. The result is the least time t at which the chunks s_i = max(0, (t r_i - N) / (p - 2)) add up to N.
std::vector<uint32_t> sharesFor(std::span<const double> bytesPerSecond);

/// Returns the segment size for chunks of unequal size, at most `segmentBytes`. In every segment, the bytes of the slow
/// host arrive last. Until then, the bytes of the faster ranks cannot be reduced. Short segments limit these waiting
/// bytes. Paths with a large bandwidth-delay product keep long segments, because `window` segments must keep the path
/// busy for some round trips.
size_t segmentForShares(size_t segmentBytes, uint32_t window, int numRanks, const NetworkMeasurement& network);

}  // namespace agspeed::comm::plan
