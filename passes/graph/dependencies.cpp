// SPDX-License-Identifier: Apache-2.0
#include "passes/graph/dependencies.h"

#include <algorithm>
#include <map>
#include <utility>

namespace agspeed::passes {

using compiler::Graph;
using compiler::kNoValue;
using compiler::Node;
using compiler::ValueId;

namespace {

// The alias classes that a node writes. An opaque node may write all its inputs.
std::vector<int32_t> writtenClasses(const Node& node, const std::vector<int32_t>& classes) {
  std::vector<int32_t> written;
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    bool isWritten = node.effects.isOpaque;
    for (int32_t position : node.effects.mutates) isWritten |= static_cast<size_t>(position) == i;
    if (isWritten) written.push_back(classes[node.inputs[i]]);
  }
  return written;
}

// The last node that wrote one alias class (-1: none yet), and the nodes that touched the class since.
struct History {
  int32_t lastWrite = -1;
  std::vector<int32_t> touchesSinceWrite;
};

void append(std::vector<int32_t>& list, int32_t node) {
  if (node >= 0) list.push_back(node);
}

}  // namespace

std::vector<std::vector<int32_t>> effectOrderOf(const Graph& graph) {
  const std::vector<int32_t> classes = compiler::aliasClassesOf(graph);
  const std::vector<bool> isMutated = mutatedMask(graph);
  std::vector<std::vector<int32_t>> before(graph.nodes.size());
  std::map<int32_t, History> histories;
  int32_t lastRandom = -1;
  int32_t lastOpaque = -1;
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    auto self = static_cast<int32_t>(i);
    if (node.effects.isRandom || node.effects.isOpaque) append(before[i], std::exchange(lastRandom, self));
    if (node.effects.isOpaque) append(before[i], std::exchange(lastOpaque, self));
    for (int32_t written : writtenClasses(node, classes)) {
      History& history = histories[written];
      append(before[i], history.lastWrite);
      before[i].insert(before[i].end(), history.touchesSinceWrite.begin(), history.touchesSinceWrite.end());
      history = {self, {}};
    }
    for (ValueId input : node.inputs) {
      if (!isMutated[input]) continue;
      History& history = histories[classes[input]];
      if (history.lastWrite == self) continue;
      append(before[i], history.lastWrite);
      history.touchesSinceWrite.push_back(self);
    }
  }
  for (std::vector<int32_t>& list : before) {
    std::sort(list.begin(), list.end());
    list.erase(std::unique(list.begin(), list.end()), list.end());
  }
  return before;
}

std::vector<bool> mutatedMask(const Graph& graph) {
  const std::vector<int32_t> classes = compiler::aliasClassesOf(graph);
  std::vector<bool> isWrittenClass(graph.values.size(), false);
  for (const Node& node : graph.nodes) {
    for (int32_t written : writtenClasses(node, classes)) isWrittenClass[written] = true;
  }
  std::vector<bool> mask(graph.values.size());
  for (size_t v = 0; v < mask.size(); ++v) mask[v] = isWrittenClass[classes[v]];
  return mask;
}

}  // namespace agspeed::passes
