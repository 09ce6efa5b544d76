// SPDX-License-Identifier: Apache-2.0
// gradient-stages: decides after which nodes gradients are handed over. A stage ends after each such node.
//
// A gradient may be handed over after the last node that touches its memory or the memory of the tensor that it is the
// gradient of. The receiver may change both. Example: an optimizer that steps in a hook changes a parameter and its
// gradient. Gradients that are ready wait until together they have the least size of a stage.
#include <algorithm>
#include <map>
#include <utility>

#include "passes/graph/passes.h"
#include "runtime/base/format.h"

namespace agspeed::passes {

using compiler::Graph;
using compiler::kNoValue;
using compiler::ValueId;

namespace {

// A stage costs microseconds, and more stages than this gain nothing. The size of a stage grows to keep to this number.
constexpr int64_t kMaxStages = 64;

// By alias class: the last node that reads or writes a value of the class, or -1 if no node does.
std::vector<int32_t> lastTouches(const Graph& graph, const std::vector<int32_t>& classes) {
  std::vector<int32_t> last(graph.values.size(), -1);
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    for (ValueId input : graph.nodes[i].inputs) last[classes[input]] = static_cast<int32_t>(i);
    for (ValueId result : graph.nodes[i].results) {
      if (result != kNoValue) last[classes[result]] = static_cast<int32_t>(i);
    }
  }
  return last;
}

// Bytes of the value if the symbols have their typical values (Graph::hints); 0 if the size cannot be evaluated.
int64_t typicalBytes(const Graph& graph, ValueId value) {
  const compiler::TensorType& type = graph.typeOf(value);
  const auto elements = compiler::numElements(type.sizes).evaluate(graph.hints);
  return elements.hasValue() ? *elements * static_cast<int64_t>(sizeInBytes(type.dtype)) : 0;
}

// By output value: the node after which it may be handed over. Integer outputs and None are not included.
StatusOr<std::map<ValueId, int32_t>> readyAfter(const Graph& graph,
                                                const std::vector<std::vector<int32_t>>& inputsInMemoryOf) {
  const std::vector<int32_t> classes = compiler::aliasClassesOf(graph);
  const std::vector<int32_t> last = lastTouches(graph, classes);
  std::map<ValueId, int32_t> ready;
  for (size_t i = 0; i < graph.outputs.size(); ++i) {
    const ValueId output = graph.outputs[i];
    if (output == kNoValue || graph.values[output].isScalar) continue;
    int32_t node = std::max(last[classes[output]], 0);
    const std::vector<int32_t> own = i < inputsInMemoryOf.size() ? inputsInMemoryOf[i] : std::vector<int32_t>();
    for (int32_t input : own) {
      if (input < 0 || static_cast<size_t>(input) >= graph.inputs.size()) {
        return invalidArgument("gradient {} names input {} of {}", i, input, graph.inputs.size());
      }
      node = std::max(node, last[classes[graph.inputs[input]]]);
    }
    const auto [known, isNew] = ready.emplace(output, node);
    if (!isNew) known->second = std::max(known->second, node);
  }
  // By alias class. Gradients that may share memory are handed over together.
  std::map<int32_t, int32_t> together;
  for (const auto& [output, node] : ready) together[classes[output]] = std::max(together[classes[output]], node);
  for (auto& [output, node] : ready) node = together[classes[output]];
  return ready;
}

}  // namespace

StatusOr<GradientStagePlan> planGradientStages(const Graph& graph, int64_t stageBytes,
                                               const std::vector<std::vector<int32_t>>& inputsInMemoryOf) {
  GradientStagePlan plan;
  if (stageBytes <= 0) return plan;
  AG_ASSIGN_OR_RETURN(const auto ready, readyAfter(graph, inputsInMemoryOf));
  std::vector<std::vector<ValueId>> outputsOf(graph.nodes.size());
  int64_t total = 0;
  for (const auto& [output, node] : ready) {
    total += typicalBytes(graph, output);
    if (!graph.nodes.empty()) outputsOf[node].push_back(output);
  }
  const int64_t wanted = std::max(stageBytes, total / kMaxStages);
  GradientStagePlan::Stage stage;
  int64_t bytes = 0;
  size_t numLeft = ready.size();
  for (size_t node = 0; node < graph.nodes.size(); ++node) {
    for (ValueId output : outputsOf[node]) {
      stage.outputs.push_back(output);
      bytes += typicalBytes(graph, output);
    }
    if (stage.outputs.empty() || bytes < wanted || stage.outputs.size() == numLeft) continue;
    numLeft -= stage.outputs.size();
    stage.lastNode = static_cast<int32_t>(node);
    plan.stages.push_back(std::exchange(stage, {}));
    bytes = 0;
  }
  return plan;
}

std::string toString(const GradientStagePlan& plan, const Graph& graph) {
  std::string text = "gradient stages\n";
  for (const GradientStagePlan::Stage& stage : plan.stages) {
    text += formatText("  after node {}:", stage.lastNode);
    for (ValueId output : stage.outputs) text += " %" + graph.values[output].name;
    text += "\n";
  }
  return text;
}

}  // namespace agspeed::passes
