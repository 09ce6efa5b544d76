// SPDX-License-Identifier: Apache-2.0
// Plans: decisions about a graph that are kept beside it. compiler/program turns a graph and its plans into a Program.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "compiler/graph/graph.h"

namespace agspeed::passes {

/// The memory in which kernel results live.
struct MemoryPlan {
  /// By value: offset in bytes into the arena, or nullopt for a value that gets memory of its own.
  std::vector<std::optional<SymExpr>> offsets;
  SymExpr arenaBytes;
};
std::string toString(const MemoryPlan& plan, const compiler::Graph& graph);

/// By node: the values that are dropped after it, because no later node reads them.
struct ReleasePlan {
  std::vector<std::vector<compiler::ValueId>> after;
};
std::string toString(const ReleasePlan& plan, const compiler::Graph& graph);

/// The outputs that are handed over before the end of the graph, by stage. Empty if there is one stage only.
struct GradientStagePlan {
  struct Stage {
    int32_t lastNode = 0;
    std::vector<compiler::ValueId> outputs;  ///< handed over after lastNode; without duplicates
  };
  std::vector<Stage> stages;  ///< all stages but the last
};
std::string toString(const GradientStagePlan& plan, const compiler::Graph& graph);

}  // namespace agspeed::passes
