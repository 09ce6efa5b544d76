// SPDX-License-Identifier: Apache-2.0
#include "passes/pipeline.h"
#include "runtime/base/format.h"

#include <algorithm>
#include <chrono>
#include <fstream>

namespace agspeed::passes {

using compiler::Graph;

// The story: an imported graph has one node per primitive operation, many of them duplicates or unused.
const std::vector<GraphPass>& graphPasses() {
  static const auto* const passes = new std::vector<GraphPass>{
      // Drop what nobody reads, so that it is not fused.
      {"dce", dce},
      // Compute common parts of formulas once (sigmoid(x) in a backward, say).
      {"cse", cse},
      // Group what is left into kernels; views that only kernels read disappear.
      {"fuse-pointwise", fusePointwise, /*isRequired=*/true},
  };
  return *passes;
}

namespace {

Status checkDisabled(const PipelineOptions& options) {
  for (const std::string& name : options.disabledPasses) {
    auto pass = std::ranges::find(graphPasses(), name, &GraphPass::name);
    bool isKernelPass = name.starts_with("ag-");
    if (pass == graphPasses().end() && !isKernelPass) return invalidArgument("there is no pass named \"" + name + "\"");
    if (pass != graphPasses().end() && pass->isRequired) {
      return invalidArgument("pass \"" + name + "\" cannot be disabled: kernels need it");
    }
  }
  return {};
}

// Runs passes one by one: skip by name, time, verify, dump.
class Funnel {
 public:
  explicit Funnel(const PipelineOptions& options) : options_(options) {}

  StatusOr<Graph> run(const GraphPass& pass, Graph graph) {
    if (std::ranges::find(options_.disabledPasses, pass.name) != options_.disabledPasses.end()) return graph;
    auto begin = std::chrono::steady_clock::now();
    StatusOr<Graph> result = pass.run(graph);
    if (!result.isOk()) return result.status().withContext("pass " + std::string(pass.name));
    record(pass.name, begin);
    if (options_.verifyEachPass) {
      if (Status status = result->verify(); !status) return status.withContext("after pass " + std::string(pass.name));
    }
    if (!options_.dumpDir.empty()) dump(pass.name, result->toString());
    return result;
  }

  void record(std::string_view name, std::chrono::steady_clock::time_point begin) {
    std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
    timings_.push_back({std::string(name), elapsed.count()});
  }

  // Dumps are for people: a failure to write one is not an error of the compilation.
  void dump(std::string_view name, const std::string& text) {
    std::string number = std::to_string(numDumps_++);
    std::ofstream file(options_.dumpDir + "/" + options_.dumpPrefix + number + "-" + std::string(name) + ".ag");
    file << (text == lastDump_ ? "(unchanged)\n" : text);
    lastDump_ = text;
  }

  std::vector<PassTiming> takeTimings() { return std::move(timings_); }

 private:
  const PipelineOptions& options_;
  std::vector<PassTiming> timings_;
  std::string lastDump_;
  int numDumps_ = 0;
};

}  // namespace

StatusOr<PlannedGraph> runPipeline(Graph graph, const PipelineOptions& options) {
  AG_RETURN_IF_ERROR(checkDisabled(options));
  Funnel funnel(options);
  if (!options.dumpDir.empty()) funnel.dump("import", graph.toString());
  for (const GraphPass& pass : graphPasses()) {
    AG_ASSIGN_OR_RETURN(graph, funnel.run(pass, std::move(graph)));
  }
  // The order is fixed now: decide where values live and when they die.
  PlannedGraph planned;
  auto begin = std::chrono::steady_clock::now();
  planned.memory = planMemory(graph);
  planned.releases = planReleases(graph, planned.memory);
  funnel.record("plan-memory", begin);
  if (!options.dumpDir.empty()) {
    funnel.dump("plan-memory", planned.memory.toString(graph) + planned.releases.toString(graph));
  }
  planned.graph = std::move(graph);
  planned.timings = funnel.takeTimings();
  return planned;
}

}  // namespace agspeed::passes
