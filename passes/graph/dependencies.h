// SPDX-License-Identifier: Apache-2.0
// Dependencies: the order that any reordering of a graph must keep. Data flow is one part; the others are effects:
// random draws keep their order, opaque calls keep theirs, and nodes that touch memory stay on their side of a node
// that mutates it.
#pragma once

#include <vector>

#include "compiler/graph/graph.h"

namespace agspeed::passes {

/// Per node, the earlier nodes (sorted, unique) that effects force to run before it. Data flow is not included.
std::vector<std::vector<int32_t>> effectOrderOf(const compiler::Graph& graph);

/// By value: true when memory it may share is written in place by some node.
std::vector<bool> mutatedMask(const compiler::Graph& graph);

}  // namespace agspeed::passes
