// SPDX-License-Identifier: Apache-2.0
// FusionPlan: which nodes share a kernel, and in which order kernels and calls run. The decision half of fusePointwise;
// build_kernel.h is the other half.
//
// Every element-wise node and reduction starts as a unit of its own. Units merge along data flow, then with units that
// read the same tensor, as long as both fit one iteration space, no path leads from one to the other around the merged
// unit, and the kernel stays within limits. Constants and views are not units: kernels hold and read through them.
#pragma once

#include <vector>

#include "compiler/graph/graph.h"
#include "passes/graph/access.h"

namespace agspeed::passes {

/// Bounds of one kernel: beyond them registers spill and compile time grows.
struct FusionLimits {
  size_t maxNodes = 160;
  size_t maxOperands = 24;
};

/// A call (isKernel false, one node) or the nodes of a kernel in execution order.
struct FusionUnit {
  std::vector<int32_t> nodes;
  bool isKernel = false;
  Space space;
};

/// Units in execution order. Nodes that nothing needs are in no unit.
std::vector<FusionUnit> planFusion(const AccessResolver& resolver, const FusionLimits& limits = {});

}  // namespace agspeed::passes
