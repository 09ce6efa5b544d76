// SPDX-License-Identifier: Apache-2.0
// The pipeline from an imported graph to a planned one. Every graph pass and plan goes through its funnel
// (pipeline.cpp). Thread-safety: all functions may be called concurrently. Each call of runPipeline() owns its trace.
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
  GradientStagePlan stages;  ///< empty if the options ask for no stages
};

/// A graph-to-graph pass by name.
struct GraphPass {
  std::string_view name;
  StatusOr<compiler::Graph> (*run)(const compiler::Graph& graph);
};

/// The graph-to-graph passes in pipeline order.
std::span<const GraphPass> graphPasses();

/// Runs the graph passes that are not disabled, then plans memory, releases and, if options.gradientStages asks for
/// them, gradient stages. The names of the files in the dump folder begin with `stem`. Requires: checkDisabledPasses()
/// accepts the options. Errors: kInternal if the result of a pass does not verify; the message names the pass. See
/// planGradientStages() for its errors.
StatusOr<PlannedGraph> runPipeline(compiler::Graph graph, const compiler::CompileOptions& options,
                                   const std::string& stem = "");

}  // namespace agspeed::passes
