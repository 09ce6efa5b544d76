// SPDX-License-Identifier: Apache-2.0
// buildKernel: turns a planned unit into a Cluster and the kKernel node that launches it. Decides rows and columns:
// dimensions that step alike in every operand become one, those without a reduction are ordered by memory.
#pragma once

#include "compiler/graph/graph.h"
#include "passes/graph/fusion_plan.h"

namespace agspeed::passes {

struct BuiltKernel {
  compiler::Cluster cluster;
  compiler::Node launch;  ///< without its cluster index
};

/// `isNeeded`: by value, whether anything outside the unit reads it.
BuiltKernel buildKernel(const AccessResolver& resolver, const FusionUnit& unit, const std::vector<bool>& isNeeded);

}  // namespace agspeed::passes
