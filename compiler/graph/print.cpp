// SPDX-License-Identifier: Apache-2.0
// toString(Graph): the text form, one node per line. parse.cpp reads it back.
#include <algorithm>

#include "compiler/graph/graph.h"
#include "compiler/graph/text_reader.h"
#include "runtime/base/format.h"

namespace agspeed::compiler {
namespace {

std::string nameOf(const Graph& graph, ValueId value) {
  return value == kNoValue ? "none" : "%" + graph.values[value].name;
}

template <typename Items, typename Print>
std::string join(const Items& items, Print print) {
  std::string text;
  for (size_t i = 0; i < items.size(); ++i) text += (i ? ", " : "") + print(items[i]);
  return text;
}

std::string printArgument(const Graph& graph, const Node& node, const Argument& argument) {
  std::string prefix = argument.name.empty() ? "" : argument.name + "=";
  switch (argument.kind) {
    case Argument::Kind::kNone: return prefix + "none";
    case Argument::Kind::kBool: return prefix + (argument.boolean ? "true" : "false");
    case Argument::Kind::kInteger: return prefix + "int " + argument.integer.toString();
    case Argument::Kind::kFloat: return prefix + "float " + formatDouble(argument.number);
    case Argument::Kind::kString: return prefix + formatString(argument.text);
    case Argument::Kind::kDType: return prefix + "dtype " + std::string(toString(argument.dtype));
    case Argument::Kind::kValue: return prefix + nameOf(graph, node.inputs[argument.input]);
    case Argument::Kind::kList: break;
  }
  return prefix + "[" + join(argument.items, [&](const Argument& item) { return printArgument(graph, node, item); }) +
         "]";
}

std::string printEffects(const Node& node) {
  std::string text;
  if (node.viewOffset) text += " view";
  if (node.viewDims) text += " [" + join(*node.viewDims, [](int32_t d) { return std::to_string(d); }) + "]";
  if (node.viewOffset && (!node.viewDims || !isZero(*node.viewOffset))) {
    text += " at [" + node.viewOffset->toString() + "]";
  }
  if (node.effects.isRandom) text += " random";
  if (node.effects.isOpaque) text += " opaque";
  if (node.effects.mayAlias) text += " alias";
  if (!node.effects.mutates.empty()) {
    text += " mutates [" + join(node.effects.mutates, [](int32_t i) { return std::to_string(i); }) + "]";
  }
  return text;
}

std::string printDims(const Dims& dims) {
  return "[" + join(dims, [](const SymExpr& dim) { return dim.toString(); }) + "]";
}

std::string printParts(const Graph& graph, const Node& node) {
  std::string text;
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    text += formatText("{}{} at [{}]", i > 0 ? ", " : "", nameOf(graph, node.inputs[i]), node.offsets[i].toString());
  }
  return text;
}

std::string printOperation(const Graph& graph, const Node& node) {
  auto inputs = [&] { return join(node.inputs, [&](ValueId v) { return nameOf(graph, v); }); };
  switch (node.kind) {
    case NodeKind::kPointwise: {
      std::string name(infoOf(node.op).name);
      if (node.op == PointwiseOp::kConstant) return name + " " + formatDouble(node.constant);
      return name + " " + inputs();
    }
    case NodeKind::kReduce:
      return formatText("{} {} dims {}{}", infoOf(node.op).name, inputs(), node.numReducedDims,
                        isZero(node.blockRows) ? "" : " block [" + node.blockRows.toString() + "]");
    case NodeKind::kCall:
      return "call " + formatString(node.target) + "(" +
             join(node.arguments, [&](const Argument& a) { return printArgument(graph, node, a); }) + ")" +
             printEffects(node);
    case NodeKind::kJoin: return "join " + printParts(graph, node);
    case NodeKind::kKernel: break;
  }
  return formatText("kernel {}({}) integers {}{} extent [{}] grain [{}]", node.cluster, inputs(),
                    printDims(node.integers), node.offsets.empty() ? "" : " offsets " + printDims(node.offsets),
                    node.extent.toString(), node.grain.toString());
}

std::string printNode(const Graph& graph, const Node& node) {
  std::string text = "  ";
  if (!node.results.empty()) text += join(node.results, [&](ValueId v) { return nameOf(graph, v); }) + " = ";
  text += printOperation(graph, node);
  if (!node.results.empty()) {
    text += " : " + join(node.results, [&](ValueId v) {
              return v == kNoValue ? std::string("none") : graph.values[v].type.toString();
            });
  }
  if (!node.origin.empty()) text += " @" + formatString(node.origin);
  if (!node.reason.empty()) text += " because " + formatString(node.reason);
  return text + "\n";
}

}  // namespace

std::string toString(const Graph& graph) {
  std::string text = "graph\n";
  if (!graph.hints.empty())
    text += "  symbols [" + join(graph.hints, [](int64_t hint) { return std::to_string(hint); }) + "]\n";
  auto isInput = [&](size_t v) {
    return std::ranges::find(graph.inputs, static_cast<ValueId>(v)) != graph.inputs.end();
  };
  for (ValueId input : graph.inputs) {
    const Value& value = graph.values[input];
    text +=
        "  %" + value.name + " = input " + (value.isScalar ? "int " + value.scalar.toString() : value.type.toString());
    text += "\n";
  }
  for (size_t v = 0; v < graph.values.size(); ++v) {
    if (graph.values[v].isScalar && !isInput(v))
      text += "  %" + graph.values[v].name + " = int " + graph.values[v].scalar.toString() + "\n";
  }
  for (const Node& node : graph.nodes) text += printNode(graph, node);
  text += "  return " + join(graph.outputs, [&](ValueId v) { return nameOf(graph, v); }) + "\n";
  for (const Cluster& cluster : graph.clusters) text += cluster.toString();
  return text;
}

}  // namespace agspeed::compiler
