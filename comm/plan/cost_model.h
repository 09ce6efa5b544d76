// SPDX-License-Identifier: Apache-2.0
// Predicts how long an algorithm takes on a measured network, and finds algorithms that are faster on it than the
// plan's own choice.
//
// The model is coarse on purpose. It only has to find the fastest of several algorithms that differ much in rounds and
// bytes. An algorithm replaces the plan's choice only if its predicted time is much shorter. The model ignores that
// partial results may have wider elements than the buffer. The functions are pure: equal arguments give equal results
// at all ranks.
#pragma once

#include <span>
#include <vector>

#include "comm/plan/plan.h"
#include "comm/schedule/verifier.h"

namespace agspeed::comm::plan {

/// The cost of a message and of a byte between two ranks of the group. All figures are positive. Ranks measure the
/// latency and the rate of their rails (HostStatsExchange); the other figures keep their defaults.
struct NetworkMeasurement {
  double latencySeconds = 30e-6;        ///< time from the start of an empty send until its receive completes
  double messageSeconds = 5e-6;         ///< processor time for each message that a rank sends
  double bytesPerSecond = 1.2e9;        ///< all rails of a rank together, in each direction
  double reducedBytesPerSecond = 10e9;  ///< rate at which reductions read their inputs
};

/// Returns the predicted seconds of an operation on a buffer of `bytes`, whose chunks are cut into `numSegments`
/// segments.
double predictSeconds(const schedule::ScheduleCounts& counts, double bytes, double numSegments,
                      const NetworkMeasurement& network);

/// An algorithm and its costs in a group of a given size.
struct CountedAlgorithm {
  const schedule::Algorithm* algorithm = nullptr;
  schedule::ScheduleCounts counts;
  double numChunks = 1;
};

/// Returns the costs of the all-reduce algorithms with canonical order, for ranks on different hosts. Also verifies
/// their schedules, which takes some milliseconds. Returns nothing for groups so large that this takes long.
std::vector<CountedAlgorithm> countAllReduces(int numRanks);

/// Returns rules for short all-reduces. For each size, a rule names the fastest algorithm if its predicted time is less
/// than two thirds of that of the plan's algorithm. Otherwise the rule names the plan's algorithm. Returns no rules if
/// `counted` is empty.
std::vector<PlanRule> fitToNetwork(std::span<const CountedAlgorithm> counted, const NetworkMeasurement& network,
                                   int numRanks);

}  // namespace agspeed::comm::plan
