// SPDX-License-Identifier: Apache-2.0
// cse: replaces a pure node by an earlier one that computes the same from the same values.
//   %a = exp %x;  %b = exp %x   ->   %a = exp %x, uses of %b read %a
// It keeps a node if its result may share memory with an output, because eager returns separate tensors. It also keeps
// a node if memory that the node reads or returns is mutated, and the parts of joins, each of which has its own place.
#include <map>

#include "passes/graph/dependencies.h"
#include "passes/graph/passes.h"
#include "runtime/base/format.h"

namespace agspeed::passes {

using compiler::Argument;
using compiler::Graph;
using compiler::kNoValue;
using compiler::Node;
using compiler::NodeKind;
using compiler::ValueId;

namespace {

void appendArgument(std::string& key, const Argument& argument) {
  key += formatText("{}={}:", argument.name, static_cast<int>(argument.kind));
  switch (argument.kind) {
    case Argument::Kind::kNone: break;
    case Argument::Kind::kBool: key += argument.boolean ? "1" : "0"; break;
    case Argument::Kind::kInteger: key += argument.integer.toString(); break;
    case Argument::Kind::kFloat: key.append(reinterpret_cast<const char*>(&argument.number), sizeof(double)); break;
    case Argument::Kind::kString: key += argument.text; break;
    case Argument::Kind::kDType: key += toString(argument.dtype); break;
    case Argument::Kind::kValue: key += std::to_string(argument.input); break;
    case Argument::Kind::kList:
      for (const Argument& item : argument.items) appendArgument(key, item);
      break;
  }
  key += ";";
}

// A text that is equal for two nodes exactly if they compute the same from the same values.
std::string keyOf(const Graph& graph, const Node& node) {
  std::string key = formatText("{}|{}|", static_cast<int>(node.kind), node.target);
  if (node.kind != NodeKind::kCall) {
    key += formatText("{}|{}|", static_cast<int>(node.op), node.numReducedDims);
    key += node.blockRows.toString() + "|";
    for (const SymExpr& offset : node.offsets) key += offset.toString() + ",";
    key.append(reinterpret_cast<const char*>(&node.constant), sizeof(double));
  }
  for (ValueId input : node.inputs) key += formatText("%{}", input);
  for (const Argument& argument : node.arguments) appendArgument(key, argument);
  for (ValueId result : node.results) key += "|" + (result == kNoValue ? "none" : graph.typeOf(result).toString());
  return key;
}

class CommonNodes {
 public:
  explicit CommonNodes(const Graph& graph)
      : graph_(graph),
        replacement_(graph.values.size()),
        isMutated_(mutatedMask(graph)),
        joins_(compiler::joinsOf(graph)) {
    for (size_t v = 0; v < replacement_.size(); ++v) replacement_[v] = static_cast<ValueId>(v);
    std::vector<int32_t> classes = compiler::aliasClassesOf(graph);
    std::vector<bool> isEscapingClass(graph.values.size(), false);
    for (ValueId output : graph.outputs) {
      if (output != kNoValue) isEscapingClass[classes[output]] = true;
    }
    for (int32_t valueClass : classes) escapes_.push_back(isEscapingClass[valueClass]);
  }

  Graph run() {
    Graph result = graph_;
    result.nodes.clear();
    for (Node node : graph_.nodes) {
      for (ValueId& input : node.inputs) input = replacement_[input];
      if (!replaceByEarlier(node)) result.nodes.push_back(std::move(node));
    }
    for (ValueId& output : result.outputs) {
      if (output != kNoValue) output = replacement_[output];
    }
    return result;
  }

 private:
  bool mayShare(const Node& node) const {
    if (!node.effects.isPure() || node.kind == NodeKind::kKernel) return false;
    for (ValueId value : node.inputs) {
      if (isMutated_[value]) return false;
    }
    for (ValueId value : node.results) {
      if (value != kNoValue && (isMutated_[value] || escapes_[value] || joins_[value] >= 0)) return false;
    }
    return true;
  }

  bool replaceByEarlier(const Node& node) {
    if (!mayShare(node)) return false;
    auto [found, isNew] = seen_.emplace(keyOf(graph_, node), node.results);
    if (isNew) return false;
    for (size_t i = 0; i < node.results.size(); ++i) {
      if (node.results[i] != kNoValue) replacement_[node.results[i]] = found->second[i];
    }
    return true;
  }

  const Graph& graph_;
  std::vector<ValueId> replacement_;
  std::vector<bool> isMutated_;
  std::vector<bool> escapes_;
  std::vector<int32_t> joins_;
  std::map<std::string, std::vector<ValueId>> seen_;
};

}  // namespace

Graph cse(const Graph& graph) { return CommonNodes(graph).run(); }

}  // namespace agspeed::passes
