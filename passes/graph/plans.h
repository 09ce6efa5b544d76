// SPDX-License-Identifier: Apache-2.0
// Plans: decisions about a graph, kept beside it. compiler/program turns graph and plans into a Program.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "compiler/graph/graph.h"

namespace agspeed::passes {

/// Where kernel results live.
struct MemoryPlan {
  /// By value: offset in bytes into the arena, or nullopt for a value that gets memory of its own.
  std::vector<std::optional<SymExpr>> offsets;
  SymExpr arenaBytes;
};
std::string toString(const MemoryPlan& plan, const compiler::Graph& graph);

/// By node: values that nobody reads after it.
struct ReleasePlan {
  std::vector<std::vector<compiler::ValueId>> after;
};
std::string toString(const ReleasePlan& plan, const compiler::Graph& graph);

/// The outputs that leave before the end, stage by stage. Empty: there is one stage.
struct GradientStagePlan {
  struct Stage {
    int32_t lastNode = 0;
    std::vector<compiler::ValueId> outputs;  ///< each once
  };
  std::vector<Stage> stages;  ///< all but the last
};
std::string toString(const GradientStagePlan& plan, const compiler::Graph& graph);

}  // namespace agspeed::passes
