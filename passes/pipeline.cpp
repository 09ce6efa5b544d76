// SPDX-License-Identifier: Apache-2.0
#include "passes/pipeline.h"

#include <chrono>

#include "passes/pass_names.h"
#include "passes/pass_trace.h"
#include "runtime/base/format.h"

namespace agspeed::passes {

using compiler::Graph;

namespace {

// Gives passes that return a Graph and passes that return a StatusOr<Graph> the same type.
template <auto function>
StatusOr<Graph> run(const Graph& graph) {
  return function(graph);
}

constexpr GraphPass kGraphPasses[] = {
#define AG_GRAPH_PASS(name, function, need) {name, run<function>},
#include "passes/passes.def"
};

// Runs one pass at a time: skips it if its name is disabled, times it, verifies its result and dumps it.
class Funnel {
 public:
  Funnel(const compiler::CompileOptions& options, const std::string& stem)
      : options_(options), trace_(options.dumpDir, stem, ".ag") {}

  StatusOr<Graph> run(const GraphPass& pass, Graph graph) {
    if (isDisabled(options_, pass.name)) return graph;
    auto begin = std::chrono::steady_clock::now();
    StatusOr<Graph> result = pass.run(graph);
    if (!result.hasValue()) return result.status().withContext(formatText("pass {}", pass.name));
    trace_.addTiming(pass.name, begin);
    if (options_.verifyEachPass) {
      if (Status status = verify(*result); !status.isOk())
        return status.withContext(formatText("after pass {}", pass.name));
    }
    trace_.dump(pass.name, [&] { return toString(*result); });
    return result;
  }

  PassTrace& trace() { return trace_; }

 private:
  const compiler::CompileOptions& options_;
  PassTrace trace_;
};

}  // namespace

std::span<const GraphPass> graphPasses() { return kGraphPasses; }

StatusOr<PlannedGraph> runPipeline(Graph graph, const compiler::CompileOptions& options, const std::string& stem) {
  Funnel funnel(options, stem);
  PassTrace& trace = funnel.trace();
  trace.dump("import", [&] { return toString(graph); });
  for (const GraphPass& pass : kGraphPasses) {
    AG_ASSIGN_OR_RETURN(graph, funnel.run(pass, std::move(graph)));
  }
  // The order of the nodes is final now, so the plans can decide where values live and when they are dropped.
  PlannedGraph planned;
  auto begin = std::chrono::steady_clock::now();
  planned.memory = planMemory(graph);
  planned.releases = planReleases(graph, planned.memory);
  trace.addTiming("plan-memory", begin);
  trace.dump("plan-memory", [&] { return toString(planned.memory, graph) + toString(planned.releases, graph); });
  trace.dumpTimings();
  planned.graph = std::move(graph);
  return planned;
}

}  // namespace agspeed::passes
