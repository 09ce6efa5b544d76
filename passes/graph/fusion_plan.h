// SPDX-License-Identifier: Apache-2.0
// Fusion plan: decides which nodes share a kernel, and in which order kernels and calls run. This is the first half of
// fusePointwise; build_kernel.h is the second half.
//
// Every element-wise node and every reduction starts as a unit of its own. A unit merges with units along the data
// flow, then with units that read the same tensor. Two units merge if both fit one iteration space, no path leads from
// one to the other through a third unit, and the kernel stays within the limits. Constants and views that only kernels
// read are in no unit: a kernel contains its constants and reads through views. At last, kernels get copies of cheap
// nodes of other kernels, so that their values need not be stored (recompute.h).
#pragma once

#include <vector>

#include "compiler/graph/graph.h"
#include "passes/graph/access.h"

namespace agspeed::passes {

/// Limits of one kernel. In larger kernels registers spill and compile time grows.
struct FusionLimits {
  size_t maxNodes = 160;
  size_t maxOperands = 24;
  /// Results of calls that only this kernel reads. All of them wait in memory until it runs. Example: a weight that a
  /// model uses in 16 steps has 16 gradients to add.
  size_t maxCallResults = 4;
};

/// One call (isKernel is false, there is one node), or the nodes of one kernel in execution order.
struct FusionUnit {
  std::vector<int32_t> nodes;
  std::vector<int32_t>
      copies;  ///< the nodes that another unit holds, too; this unit never stores their results; sorted
  bool isKernel = false;
  Space space;
};

/// Returns the units in execution order. Nodes that are not needed are in no unit.
std::vector<FusionUnit> planFusion(const AccessResolver& resolver, const FusionLimits& limits = {});

}  // namespace agspeed::passes
