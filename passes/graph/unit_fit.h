// SPDX-License-Identifier: Apache-2.0
// Whether a kernel with a given iteration space can hold a node.
#pragma once

#include <set>

#include "compiler/graph/graph.h"
#include "passes/graph/access.h"

namespace agspeed::passes {

/// Whether kernels can hold the node: an element-wise operation or a reduction.
bool isFusible(const compiler::Node& node);
/// Whether a kernel that reads the value holds it as a constant.
bool isInlined(const AccessResolver& resolver, compiler::ValueId value);
/// Whether the node is a sum over rows. Its result is complete only when its kernel ends.
bool sumsRows(const compiler::Node& node);
/// Whether the space holds a node, if the kernel also holds `members` (indices of nodes).
bool fitsNode(const AccessResolver& resolver, int32_t index, const Space& space, const std::set<int32_t>& members);

}  // namespace agspeed::passes
