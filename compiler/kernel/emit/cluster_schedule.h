// SPDX-License-Identifier: Apache-2.0
// ClusterSchedule: how a Cluster's nodes are distributed over the column loops of a row. Pure data, no MLIR.
//
// A row is processed in phases, one column loop each. A reduction is finished by the loop of the phase in which its
// input becomes available; its value can be used from the next phase on. Element values live only inside one loop, and
// later phases recompute them. Row values are scalars that live for the rest of the row.
//
//   softmax | phase 0, loop: max(x)
//           | phase 1, loop: sum(exp(x - max))
//           | phase 2, loop: store exp(x - max) / sum
//
// All element stores are in the last phase, and so are the additions to sums over rows. So an output may be exactly the
// same memory as an input: nothing is read after it is written.
#pragma once

#include <vector>

#include "compiler/graph/cluster.h"
#include "runtime/base/status.h"

namespace agspeed::compiler {

struct ClusterSchedule {
  std::vector<bool> isRow;                   ///< per node: one value per row, computed outside the column loops
  std::vector<int> phase;                    ///< per node: the first phase that can use its value
  std::vector<std::vector<int>> reductions;  ///< per phase: the reduction nodes that its loop computes
  std::vector<ClusterStore> elementStores;   ///< in the last phase's loop
  std::vector<ClusterStore> rowStores;       ///< after the last loop
  int lanes = 16;                            ///< elements per vector: 8 when elements are 8 bytes wide, else 16

  int numPhases() const { return static_cast<int>(reductions.size()); }
};

/// Errors: kUnsupported for a cluster shape that has no kernel (a reduction or a per-row output without outer
/// dimensions, a complex dtype, more than kMaxOuterRank outer dimensions).
StatusOr<ClusterSchedule> scheduleCluster(const Cluster& cluster);

constexpr int kMaxOuterRank = 8;

}  // namespace agspeed::compiler
