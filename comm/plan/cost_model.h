// SPDX-License-Identifier: Apache-2.0
// Predicts how long an algorithm takes on a measured network, and which is quicker there than the plan's own choice.
//
// The model is coarse on purpose: it only has to put algorithms of different shape in the right order, and is heard
// only where they differ much. It knows nothing of partial results that travel wider than their type. Pure functions,
// equal on all ranks for equal figures.
#pragma once

#include <span>
#include <vector>

#include "comm/plan/plan.h"
#include "comm/schedule/verifier.h"

namespace agspeed::comm {

/// What a message and a byte cost between two ranks of the group. Figures are positive.
struct NetworkMeasurement {
  double latencySeconds = 30e-6;        ///< from a send to its receive, empty message
  double messageSeconds = 5e-6;         ///< of a processor, per message sent
  double bytesPerSecond = 1.2e9;        ///< all rails of a rank together, in each direction
  double reducedBytesPerSecond = 10e9;  ///< inputs read by the reduction kernels
};

/// Seconds for an operation on a buffer of `bytes`, cut into `numSegments` per chunk.
double predictSeconds(const ScheduleCounts& counts, double bytes, double numSegments,
                      const NetworkMeasurement& network);

/// An algorithm and what it costs in a group of some size.
struct CountedAlgorithm {
  const Algorithm* algorithm = nullptr;
  ScheduleCounts counts;
  double numChunks = 1;
};

/// All-reduces of canonical order among ranks of hosts of their own. Nothing for groups so large that counting takes
/// long. Proves them on the way: some milliseconds.
std::vector<CountedAlgorithm> countAllReduces(int numRanks);

/// Rules for short all-reduces: by size the plan's own algorithm, or the quickest where that is predicted to take less
/// than two thirds of its time. Nothing where nothing was counted.
std::vector<PlanRule> fitToNetwork(std::span<const CountedAlgorithm> counted, const NetworkMeasurement& network,
                                   int numRanks);

}  // namespace agspeed::comm
