// SPDX-License-Identifier: Apache-2.0
#include "compiler/graph/graph.h"

#include <algorithm>
#include <numeric>

#include "runtime/base/format.h"

namespace agspeed::compiler {

namespace {

template <typename T>
Argument makeArgument(Argument::Kind kind, T Argument::* member, T value) {
  Argument result;
  result.kind = kind;
  result.*member = std::move(value);
  return result;
}

}  // namespace

Argument Argument::ofBool(bool value) { return makeArgument(Kind::kBool, &Argument::boolean, value); }

Argument Argument::ofInteger(SymExpr value) {
  return makeArgument(Kind::kInteger, &Argument::integer, std::move(value));
}

Argument Argument::ofFloat(double value) { return makeArgument(Kind::kFloat, &Argument::number, value); }

Argument Argument::ofString(std::string value) {
  return makeArgument(Kind::kString, &Argument::text, std::move(value));
}

Argument Argument::ofDType(DType value) { return makeArgument(Kind::kDType, &Argument::dtype, value); }

Argument Argument::ofInput(int32_t position) { return makeArgument(Kind::kValue, &Argument::input, position); }

Argument Argument::ofList(std::vector<Argument> items) {
  return makeArgument(Kind::kList, &Argument::items, std::move(items));
}

ValueId Graph::addValue(std::string name, TensorType type) {
  Value& value = values.emplace_back();
  value.name = std::move(name);
  value.type = std::move(type);
  return static_cast<ValueId>(values.size() - 1);
}

ValueId Graph::addTemporary(const std::string& base, TensorType type) {
  return addValue(formatText("{}.{}", base, values.size()), std::move(type));
}

ValueId Graph::addScalar(std::string name, SymExpr scalar) {
  Value& value = values.emplace_back();
  value.name = std::move(name);
  value.isScalar = true;
  value.scalar = std::move(scalar);
  return static_cast<ValueId>(values.size() - 1);
}

std::vector<int32_t> producersOf(const Graph& graph) {
  std::vector<int32_t> producers(graph.values.size(), -1);
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    for (ValueId result : graph.nodes[i].results) {
      if (result != kNoValue) producers[result] = static_cast<int32_t>(i);
    }
  }
  return producers;
}

std::vector<std::vector<int32_t>> usersOf(const Graph& graph) {
  std::vector<std::vector<int32_t>> users(graph.values.size());
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    for (ValueId input : graph.nodes[i].inputs) {
      if (users[input].empty() || users[input].back() != static_cast<int32_t>(i)) {
        users[input].push_back(static_cast<int32_t>(i));
      }
    }
  }
  return users;
}

std::vector<int32_t> joinsOf(const Graph& graph) {
  std::vector<int32_t> joins(graph.values.size(), -1);
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    if (graph.nodes[i].kind != NodeKind::kJoin) continue;
    for (ValueId part : graph.nodes[i].inputs) joins[part] = static_cast<int32_t>(i);
  }
  return joins;
}

std::vector<bool> outputMask(const Graph& graph) {
  std::vector<bool> mask(graph.values.size(), false);
  for (ValueId output : graph.outputs) {
    if (output != kNoValue) mask[output] = true;
  }
  return mask;
}

std::vector<int32_t> aliasClassesOf(const Graph& graph) {
  std::vector<int32_t> parent(graph.values.size());
  std::iota(parent.begin(), parent.end(), 0);
  auto find = [&](int32_t v) {
    while (parent[v] != v) v = parent[v] = parent[parent[v]];
    return v;
  };
  for (const Node& node : graph.nodes) {
    if (!node.effects.mayAlias && !node.effects.isOpaque) continue;
    for (ValueId result : node.results) {
      for (ValueId input : node.inputs) {
        if (result != kNoValue) parent[find(result)] = find(input);
      }
    }
  }
  for (size_t v = 0; v < parent.size(); ++v) parent[v] = find(static_cast<int32_t>(v));
  return parent;
}

std::string joinOrigins(const std::string& a, const std::string& b) {
  if (a.empty()) return b;
  std::string result = a;
  for (size_t begin = 0; begin < b.size();) {
    size_t end = std::min(b.find(',', begin), b.size());
    std::string name = b.substr(begin, end - begin);
    if (("," + result + ",").find("," + name + ",") == std::string::npos) result += "," + name;
    begin = end + 1;
  }
  return result;
}

}  // namespace agspeed::compiler
