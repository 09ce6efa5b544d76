// SPDX-License-Identifier: Apache-2.0
// The pipeline from an imported graph to a planned one, and the funnel that every graph pass goes through.
// Thread-safety: may be called concurrently; each call owns its trace.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "compiler/options.h"
#include "passes/graph/passes.h"

namespace agspeed::passes {

struct PlannedGraph {
  compiler::Graph graph;
  MemoryPlan memory;
  ReleasePlan releases;
  GradientStagePlan stages;  ///< for who wants several: runPipeline() leaves it empty
};

/// A graph-to-graph pass by name.
struct GraphPass {
  std::string_view name;
  StatusOr<compiler::Graph> (*run)(const compiler::Graph& graph);
};

/// The graph-to-graph passes in pipeline order.
std::span<const GraphPass> graphPasses();

/// Requires: checkDisabledPasses(). `stem` opens the names of the files in the dump folder.
/// Errors: kInternal naming the pass whose result does not verify.
StatusOr<PlannedGraph> runPipeline(compiler::Graph graph, const compiler::CompileOptions& options,
                                   const std::string& stem = "");

}  // namespace agspeed::passes
