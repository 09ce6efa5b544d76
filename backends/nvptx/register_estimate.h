// SPDX-License-Identifier: Apache-2.0
// estimateRegisters(): how many registers a thread needs per column that it works on. It counts live values in the
// order in which code is emitted. It does not see the registers inside functions such as acos, mainly their constants,
// so these functions are counted separately.
#pragma once

#include "compiler/graph/cluster.h"
#include "compiler/kernel/emit/cluster_schedule.h"

namespace agspeed::backends::nvptx {

struct RegisterEstimate {
  int peak = 0;      ///< values that are live at once, per column
  int held = 0;      ///< values that later phases need again, per column
  int sums = 0;      ///< sums over rows, per column
  int fixed = 0;     ///< addresses and row values, independent of the number of columns
  int formulas = 0;  ///< operations on columns that take more than a few instructions
};

RegisterEstimate estimateRegisters(const compiler::Cluster& cluster, const compiler::ClusterSchedule& schedule);

}  // namespace agspeed::backends::nvptx
