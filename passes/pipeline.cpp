// SPDX-License-Identifier: Apache-2.0
#include "passes/pipeline.h"

#include <chrono>
#include <functional>

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

// Runs one pass or plan at a time: skips it if its name is disabled, times it, verifies its result and dumps it.
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

  // Returns the plan that `make` makes of the final graph; an empty plan if its name is disabled.
  template <typename Plan>
  StatusOr<Plan> plan(std::string_view name, const Graph& graph, const std::function<StatusOr<Plan>()>& make) {
    if (isDisabled(options_, name)) return Plan{};
    auto begin = std::chrono::steady_clock::now();
    StatusOr<Plan> result = make();
    if (!result.hasValue()) return result.status().withContext(formatText("plan {}", name));
    trace_.addTiming(name, begin);
    trace_.dump(name, [&] { return toString(*result, graph); });
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
  // The order of the nodes is final now, so the plans can decide where values live and when they leave.
  PlannedGraph planned;
  AG_ASSIGN_OR_RETURN(planned.memory, funnel.plan<MemoryPlan>("plan-memory", graph, [&] { return planMemory(graph); }));
  AG_ASSIGN_OR_RETURN(planned.releases, funnel.plan<ReleasePlan>("plan-releases", graph,
                                                                 [&] { return planReleases(graph, planned.memory); }));
  if (const compiler::GradientStageOptions& stages = options.gradientStages; stages.bytes > 0) {
    AG_ASSIGN_OR_RETURN(planned.stages, funnel.plan<GradientStagePlan>("gradient-stages", graph, [&] {
      return planGradientStages(graph, stages.bytes, stages.inputsInMemoryOf);
    }));
  }
  trace.dumpTimings();
  planned.graph = std::move(graph);
  return planned;
}

}  // namespace agspeed::passes
