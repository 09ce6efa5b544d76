// SPDX-License-Identifier: Apache-2.0
// Recomputation: kernels compute cheap values of other kernels again, if that moves fewer bytes than a stored value.
//   kernel 1: d = sub x, m; store d; ...     kernel 2: load d; ...
// becomes
//   kernel 1: d = sub x, m; ...              kernel 2: load x, m; d = sub x, m; ...
// The values are equal bit for bit, because both kernels run the same operations.
#pragma once

#include <vector>

#include "passes/graph/fusion_plan.h"

namespace agspeed::passes {

/// By value: whether a unit reads it that does not hold its node, or the graph returns it.
std::vector<bool> valuesBetween(const AccessResolver& resolver, const std::vector<FusionUnit>& units);

/// Returns the units with copies of cheap nodes. units: in execution order, without copies.
std::vector<FusionUnit> recomputeCheaply(const AccessResolver& resolver, const FusionLimits& limits,
                                         std::vector<FusionUnit> units);

}  // namespace agspeed::passes
