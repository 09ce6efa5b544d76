// SPDX-License-Identifier: Apache-2.0
// Dependencies: the order that any reordering of a graph must keep. Data flow is one part of it. Effects are the other:
// random draws and opaque calls keep their order, and a node that reads or writes memory stays before or after each
// other node that writes this memory.
#pragma once

#include <vector>

#include "compiler/graph/graph.h"

namespace agspeed::passes {

/// Per node, the earlier nodes that must run before it because of effects (sorted, without duplicates). Data flow is
/// not included.
std::vector<std::vector<int32_t>> effectOrderOf(const compiler::Graph& graph);

/// By value: whether a node writes in place to memory that the value may share. An opaque node counts as a writer of
/// all its inputs.
std::vector<bool> mutatedMask(const compiler::Graph& graph);

}  // namespace agspeed::passes
