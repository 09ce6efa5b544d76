// SPDX-License-Identifier: Apache-2.0
// Predicts how long an algorithm takes on a measured network, and makes the plan that is quickest by prediction.
//
// The model is coarse on purpose: it only has to put algorithms of different shape in the right order. Pure functions,
// equal on all ranks for equal measurements; rank 0 measures, everybody takes its figures.
#pragma once

#include "comm/plan/plan.h"
#include "comm/schedule/verifier.h"

namespace agspeed::comm {

/// What a message and a byte cost between two ranks of the group.
struct NetworkMeasurement {
  double latencySeconds = 30e-6;        ///< from a send to its receive, empty message
  double messageSeconds = 5e-6;         ///< of a processor, per message sent
  double bytesPerSecond = 1.2e9;        ///< all rails of a rank together, in each direction
  double reducedBytesPerSecond = 10e9;  ///< inputs read by the reduction kernels
};

/// Seconds for an operation on a buffer of `bytes`, cut into `numSegments` per piece.
double predictSeconds(const ScheduleCounts& counts, double bytes, double numSegments,
                      const NetworkMeasurement& network);

/// The plan for a group: for every size the quickest algorithm, and segments long enough to hide a latency. Groups of
/// more than 32 ranks get the default algorithms. Knows nothing of ranks that share a host. Requires: figures are
/// positive, version is higher than any before.
Plan makePlan(const NetworkMeasurement& network, int numRanks, uint32_t version);

}  // namespace agspeed::comm
