// SPDX-License-Identifier: Apache-2.0
// estimateRegisters(): how many registers a thread needs for each column it works on. A count of live values in the
// order in which code is emitted. What functions such as acos need inside, their constants above all, is not seen, so
// they are counted apart.
#pragma once

#include "compiler/graph/cluster.h"
#include "compiler/kernel/emit/cluster_schedule.h"

namespace agspeed::backends::nvptx {

struct RegisterEstimate {
  int peak = 0;      ///< of values that are live at once, a column
  int held = 0;      ///< of values that later phases need again, a column
  int sums = 0;      ///< of sums over rows, a column
  int fixed = 0;     ///< addresses and row values, whatever the number of columns
  int formulas = 0;  ///< operations on columns that are more than a few instructions
};

RegisterEstimate estimateRegisters(const compiler::Cluster& cluster, const compiler::ClusterSchedule& schedule);

}  // namespace agspeed::backends::nvptx
