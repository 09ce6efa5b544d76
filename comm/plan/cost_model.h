// SPDX-License-Identifier: Apache-2.0
// Predicts how long an algorithm takes on a measured network, and which one is faster there than the plan's own choice.
//
// The model is coarse on purpose. It only has to rank algorithms of different shape, and the plan follows it only if
// they differ much. It ignores that partial results may be wider than their type. Pure functions: equal figures give
// equal results at all ranks.
#pragma once

#include <span>
#include <vector>

#include "comm/plan/plan.h"
#include "comm/schedule/verifier.h"

namespace agspeed::comm {

/// The cost of a message and of a byte between two ranks of the group. All figures are positive.
struct NetworkMeasurement {
  double latencySeconds = 30e-6;        ///< from a send to its receive, for an empty message
  double messageSeconds = 5e-6;         ///< processor time per message sent
  double bytesPerSecond = 1.2e9;        ///< all rails of a rank together, in each direction
  double reducedBytesPerSecond = 10e9;  ///< inputs read by the reduction kernels
};

/// Predicted seconds for an operation on a buffer of `bytes`, cut into `numSegments` per chunk.
double predictSeconds(const ScheduleCounts& counts, double bytes, double numSegments,
                      const NetworkMeasurement& network);

/// An algorithm and its costs in a group of a given size.
struct CountedAlgorithm {
  const Algorithm* algorithm = nullptr;
  ScheduleCounts counts;
  double numChunks = 1;
};

/// Counts the all-reduces of canonical order for ranks on different hosts. Empty for groups so large that counting
/// takes long. Also verifies the schedules, which takes some milliseconds.
std::vector<CountedAlgorithm> countAllReduces(int numRanks);

/// Rules for short all-reduces. For each size a rule names the plan's own algorithm, or the fastest one if that is
/// predicted to take less than two thirds of its time. Empty if `counted` is empty.
std::vector<PlanRule> fitToNetwork(std::span<const CountedAlgorithm> counted, const NetworkMeasurement& network,
                                   int numRanks);

}  // namespace agspeed::comm
