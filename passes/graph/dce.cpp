// SPDX-License-Identifier: Apache-2.0
// dce: drops nodes without effects whose results are never used. Their values stay in the graph's table and cost
// nothing there.
#include "passes/graph/passes.h"

namespace agspeed::passes {

using compiler::Graph;
using compiler::kNoValue;
using compiler::Node;
using compiler::ValueId;

Graph dce(const Graph& graph) {
  std::vector<bool> isUsed = compiler::outputMask(graph);
  std::vector<bool> isLive(graph.nodes.size());
  for (size_t i = graph.nodes.size(); i-- > 0;) {
    const Node& node = graph.nodes[i];
    isLive[i] = !node.effects.isPure();
    for (ValueId result : node.results) isLive[i] = isLive[i] || (result != kNoValue && isUsed[result]);
    if (!isLive[i]) continue;
    for (ValueId input : node.inputs) isUsed[input] = true;
  }
  Graph result = graph;
  result.nodes.clear();
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    if (isLive[i]) result.nodes.push_back(graph.nodes[i]);
  }
  return result;
}

}  // namespace agspeed::passes
