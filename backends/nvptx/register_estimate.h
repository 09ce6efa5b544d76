// SPDX-License-Identifier: Apache-2.0
// estimateRegisters(): how many registers a thread needs for each column it works on. A count of live values in the
// order in which code is emitted; what formulas need inside is not seen.
#pragma once

#include "compiler/graph/cluster.h"
#include "compiler/kernel/emit/cluster_schedule.h"

namespace agspeed::backends::nvptx {

struct RegisterEstimate {
  int peak = 0;   ///< of values that are live at once, a column
  int held = 0;   ///< of values that later phases need again, a column
  int sums = 0;   ///< of sums over rows, a column
  int fixed = 0;  ///< addresses and row values, whatever the number of columns
};

RegisterEstimate estimateRegisters(const compiler::Cluster& cluster, const compiler::ClusterSchedule& schedule);

}  // namespace agspeed::backends::nvptx
