// SPDX-License-Identifier: Apache-2.0
// The pipeline from an imported graph to a planned one, and the funnel that every graph pass goes through.
// Thread-safety: may be called concurrently; each call owns its log.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "passes/graph/passes.h"

namespace agspeed::passes {

struct PipelineOptions {
  std::vector<std::string> disabledPasses;  ///< by name, see pipeline.cpp
  bool verifyEachPass = true;
  std::string dumpDir;  ///< when set, each pass writes <dumpDir>/<prefix><number>-<pass>.ag
  std::string dumpPrefix;
};

struct PassTiming {
  std::string name;
  double seconds = 0;
};

struct PlannedGraph {
  compiler::Graph graph;
  MemoryPlan memory;
  ReleasePlan releases;
  std::vector<PassTiming> timings;
};

/// A graph-to-graph pass by name.
struct GraphPass {
  std::string_view name;
  std::function<StatusOr<compiler::Graph>(const compiler::Graph&)> run;
  bool isRequired = false;  ///< later stages need it: disabling is an error
};

/// The graph-to-graph passes in pipeline order.
const std::vector<GraphPass>& graphPasses();

/// Errors: kInvalidArgument for an unknown or required pass among the disabled ones, kInternal naming the pass whose
/// result does not verify.
StatusOr<PlannedGraph> runPipeline(compiler::Graph graph, const PipelineOptions& options);

}  // namespace agspeed::passes
