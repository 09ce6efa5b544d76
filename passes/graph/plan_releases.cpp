// SPDX-License-Identifier: Apache-2.0
// plan-releases: drops a value after its last use. Numbers, outputs and values in the arena are never dropped, nor are
// views of the arena, which serve the next call, too. Parts are no tensors of their own. A dropped input is freed if
// the caller has given it away, as a backward's saved tensors.
//
// Aliases keep the memory alive if one of them is dropped. So each value is dropped after its own last use, without
// regard to its aliases.
#include "passes/graph/passes.h"
#include "runtime/base/format.h"

namespace agspeed::passes {

using compiler::Graph;
using compiler::kNoValue;
using compiler::ValueId;

ReleasePlan planReleases(const Graph& graph, const MemoryPlan& memory) {
  std::vector<bool> isHeld = compiler::outputMask(graph);
  for (ValueId input : graph.inputs) {
    if (graph.values[input].isScalar) isHeld[input] = true;
  }
  for (const compiler::Node& node : graph.nodes) {
    if (node.kind == compiler::NodeKind::kJoin) {
      for (ValueId part : node.inputs) isHeld[part] = true;
    }
    if (node.viewOffset && memory.offsets[node.inputs[0]]) isHeld[node.results[0]] = true;
  }
  std::vector<int32_t> lastTouch(graph.values.size(), -1);
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    for (ValueId result : graph.nodes[i].results) {
      if (result != kNoValue) lastTouch[result] = static_cast<int32_t>(i);
    }
    for (ValueId input : graph.nodes[i].inputs) lastTouch[input] = static_cast<int32_t>(i);
  }
  ReleasePlan plan;
  plan.after.resize(graph.nodes.size());
  for (size_t v = 0; v < graph.values.size(); ++v) {
    if (lastTouch[v] >= 0 && !isHeld[v] && !memory.offsets[v])
      plan.after[lastTouch[v]].push_back(static_cast<ValueId>(v));
  }
  return plan;
}

std::string toString(const ReleasePlan& plan, const Graph& graph) {
  std::string text = "releases\n";
  for (size_t i = 0; i < plan.after.size(); ++i) {
    for (ValueId value : plan.after[i]) text += formatText("  after node {}: %{}\n", i, graph.values[value].name);
  }
  return text;
}

}  // namespace agspeed::passes
