// SPDX-License-Identifier: Apache-2.0
// buildKernel: turns a planned unit into a Cluster and the kKernel node that launches it. It also decides on the loops:
// neighbouring dimensions become one loop if every operand steps through them like one dimension. If the unit has no
// fixed columns, the strides of the first output decide the order of the dimensions.
#pragma once

#include "compiler/graph/graph.h"
#include "passes/graph/fusion_plan.h"

namespace agspeed::passes {

struct BuiltKernel {
  compiler::Cluster cluster;
  compiler::Node launch;  ///< the cluster index is not set
};

/// `isNeeded`: by value, whether another unit reads it or the graph returns it.
BuiltKernel buildKernel(const AccessResolver& resolver, const FusionUnit& unit, const std::vector<bool>& isNeeded);

}  // namespace agspeed::passes
