// SPDX-License-Identifier: Apache-2.0
#include "compiler/import/importer.h"

#include <algorithm>
#include <array>
#include <utility>

#include "compiler/import/expression.h"
#include "compiler/import/op_effects.h"
#include "compiler/import/op_import.h"
#include "compiler/import/op_table.h"
#include "compiler/import/spec_reader.h"
#include "compiler/import/view_geometry.h"
#include "runtime/base/format.h"

namespace agspeed::compiler {
namespace {

// Arithmetic on Python floats that are made from sizes.
constexpr std::array<std::pair<std::string_view, std::string_view>, 5> kFloatFunctions = {{
    // keep-sorted
    {"operator.add", "a + b"},
    {"operator.mul", "a * b"},
    {"operator.sub", "a - b"},
    {"operator.truediv", "a / b"},
    {"torch.sym_float", "a"},
}};

class Importer {
 public:
  Importer(const Spec& spec, Device device) : spec_(spec) {
    graph_.hints = spec.hints;
    graph_.device = device;
    for (const SpecNode& node : spec.nodes) {
      countReaders(node.args);
      for (const auto& [name, arg] : node.kwargs) countReaders({arg});
    }
  }

  StatusOr<Graph> import() {
    for (const SpecNode& node : spec_.nodes) {
      if (Status status = importNode(node); !status.isOk()) {
        return status.withContext("GraphSpec node \"" + node.name + "\"" +
                                  (node.target.empty() ? "" : " (" + node.target + ")"));
      }
    }
    AG_RETURN_IF_ERROR(verify(graph_));
    return std::move(graph_);
  }

 private:
  Status importNode(const SpecNode& node) {
    if (node.op == "input") return importInput(node);
    if (node.op == "output") return importOutput(node);
    if (node.op == "attr")
      return unsupported("constant tensors of a native graph are inputs, this one is an attribute");
    if (node.op != "call") return unsupported("operation \"" + node.op + "\" is not part of an ATen-level graph");
    if (node.type.kind == SpecType::Kind::kScalar) return bindScalar(node);
    if (node.target == "operator.getitem") return importGetItem(node);
    for (const auto& [target, expression] : kFloatFunctions) {
      if (node.target == target) return importFloat(node, expression);
    }
    return importOperator(node);
  }

  Status importInput(const SpecNode& node) {
    if (node.type.kind == SpecType::Kind::kScalar) {
      bindings_[node.name].scalar = node.type.scalar;
      graph_.inputs.push_back(graph_.addScalar(node.name, node.type.scalar));
      return {};
    }
    if (node.type.kind != SpecType::Kind::kTensor) return unsupported("an input that is neither tensor nor integer");
    AG_ASSIGN_OR_RETURN(ValueId value, addTensor(node.name, node.type));
    graph_.inputs.push_back(value);
    bindings_[node.name].values = {value};
    return {};
  }

  StatusOr<ValueId> addTensor(std::string name, const SpecType& type) {
    if (type.device != graph_.device && !type.device.isHost()) {
      return unsupported("a tensor is on {} in a graph for {}", toString(type.device), toString(graph_.device));
    }
    ValueId value = graph_.addValue(std::move(name), type.tensor);
    graph_.values[value].isOnHost = type.device != graph_.device;
    return value;
  }

  Status bindScalar(const SpecNode& node) {
    bindings_[node.name].scalar = node.type.scalar;
    return {};
  }

  Status importGetItem(const SpecNode& node) {
    if (node.args.size() != 2 || node.args[0].kind != SpecArg::Kind::kRef || !node.args[1].integer.isConstant()) {
      return invalidArgument("getitem takes a node and an integer");
    }
    AG_ASSIGN_OR_RETURN(const Binding* tuple, lookUp(node.args[0].text));
    int64_t index = node.args[1].integer.constant();
    if (index < 0 || static_cast<size_t>(index) >= tuple->values.size()) {
      return invalidArgument("item {} of a tuple of {}", index, tuple->values.size());
    }
    bindings_[node.name].values = {tuple->values[static_cast<size_t>(index)]};
    return {};
  }

  Status importFloat(const SpecNode& node, std::string_view expression) {
    const TensorType type = contiguousType(DType::kF64, {});
    Emitter emitter(graph_, node.name, type);
    NamedOperands names;
    for (size_t i = 0; i < node.args.size(); ++i) {
      AG_ASSIGN_OR_RETURN(names[i == 0 ? "a" : "b"], floatOperand(node.args[i], emitter));
    }
    AG_ASSIGN_OR_RETURN(Operand result, emitExpression(expression, names, DType::kF64, emitter));
    bindings_[node.name].values = {emitter.materialize(result, type, node.name)};
    bindings_[node.name].isFloat = true;
    return {};
  }

  StatusOr<Operand> floatOperand(const SpecArg& arg, Emitter& emitter) const {
    if (arg.kind == SpecArg::Kind::kFloat) return emitter.number(arg.number, DType::kF64);
    if (arg.kind == SpecArg::Kind::kInteger) return emitter.symbol(arg.integer, DType::kF64);
    if (arg.kind != SpecArg::Kind::kRef) return unsupported("arithmetic of other things than numbers");
    AG_ASSIGN_OR_RETURN(const Binding* binding, lookUp(arg.text));
    if (binding->scalar) return emitter.symbol(*binding->scalar, DType::kF64);
    if (!binding->isFloat) return unsupported("arithmetic of other things than numbers");
    return emitter.use(binding->values[0]);
  }

  // Imports native nodes if the table has a row that fits; otherwise it removes what the row emitted and imports a
  // call, which keeps the reason.
  Status importOperator(const SpecNode& node) {
    std::string refusal;
    if (const OpRow* row = findOp(node.target)) {
      size_t numNodes = graph_.nodes.size();
      size_t numValues = graph_.values.size();
      size_t numClusters = graph_.clusters.size();
      OpImport op(graph_, bindings_, node);
      Status status = buildOp(*row, op);
      if (status.isOk()) {
        bind(node, op.results());
        return {};
      }
      if (status.code() != StatusCode::kUnsupported) return status;
      refusal = status.message();
      graph_.nodes.resize(numNodes);
      graph_.values.resize(numValues);
      graph_.clusters.resize(numClusters);
    }
    return importCall(node, refusal);
  }

  // `refusal`: the reason with which the operator's row of the table has refused this call; empty: there is no row.
  Status importCall(const SpecNode& node, const std::string& refusal) {
    if (node.target.find('.') == std::string::npos || node.target.starts_with("operator.") ||
        node.target.starts_with("torch.")) {
      return unsupported("the function is not an operator");
    }
    Node call;
    call.kind = NodeKind::kCall;
    call.target = node.target;
    call.origin = node.name;
    for (const SpecArg& arg : node.args) {
      AG_ASSIGN_OR_RETURN(Argument argument, toArgument(arg, call));
      call.arguments.push_back(std::move(argument));
    }
    for (const auto& [name, arg] : node.kwargs) {
      AG_ASSIGN_OR_RETURN(Argument argument, toArgument(arg, call));
      argument.name = name;
      call.arguments.push_back(std::move(argument));
    }
    call.effects = effectsOf(node.target, call.inputs.size());
    AG_RETURN_IF_ERROR(addResults(node, call));
    if (isViewOp(node.target) && call.inputs.size() == 1 && call.results.size() == 1 && call.effects.isPure()) {
      setGeometry(call);
    }
    call.reason = reasonOf(call, refusal);
    graph_.nodes.push_back(std::move(call));
    return {};
  }

  void setGeometry(Node& call) const {
    const TensorType& source = graph_.typeOf(call.inputs[0]);
    const auto geometry = viewGeometryOf(call.target, call.arguments, source, graph_.typeOf(call.results[0]),
                                         beginsMemory(call.inputs[0]));
    if (!geometry) return;
    call.viewOffset = geometry->offset;
    call.viewDims = geometry->dims;
  }

  // Whether an operator has made the value in memory of its own. The memory of an input may begin anywhere.
  bool beginsMemory(ValueId value) const {
    for (const Node& node : graph_.nodes) {
      if (std::ranges::find(node.results, value) == node.results.end()) continue;
      return node.kind == NodeKind::kJoin || (node.effects.isPure() && !node.effects.mayAlias);
    }
    return false;
  }

  static std::string reasonOf(const Node& call, const std::string& refusal) {
    if (!refusal.empty()) return "its native form does not fit: " + refusal;
    if (call.viewOffset) return "a call or an output needs the view";
    if (call.effects.isOpaque) return "its effects are unknown to the compiler";
    if (call.effects.isRandom) return "it draws random numbers in eager's order";
    if (!call.effects.mutates.empty()) return "it writes to an input";
    if (call.target == "aten.as_strided.default")
      return "slices, permutations and reshapes of known memory would not give its strides";
    if (call.effects.mayAlias) return "kernels cannot read through this view";
    return "it has no native form";
  }

  Status addResults(const SpecNode& node, Node& call) {
    if (node.type.kind == SpecType::Kind::kTensor) {
      AG_ASSIGN_OR_RETURN(ValueId result, addTensor(node.name, node.type));
      call.results = {result};
    } else if (node.type.kind == SpecType::Kind::kTuple) {
      const std::vector<SpecArg>* mask = outputMaskOf(node);
      for (size_t i = 0; i < node.type.items.size(); ++i) {
        const SpecType& item = node.type.items[i];
        if (item.kind == SpecType::Kind::kScalar) return unsupported("an integer among an operator's results");
        call.results.push_back(kNoValue);
        if (item.kind != SpecType::Kind::kTensor || (mask && !(*mask)[i].boolean)) continue;
        AG_ASSIGN_OR_RETURN(call.results.back(), addTensor(formatText("{}.r{}", node.name, i), item));
      }
    }
    bind(node, call.results);
    return {};
  }

  void bind(const SpecNode& node, const std::vector<ValueId>& results) {
    Binding& binding = bindings_[node.name];
    binding.values = results;
    binding.definition = &node;
    binding.numReaders = numReaders_[node.name];
  }

  void countReaders(const std::vector<SpecArg>& args) {
    for (const SpecArg& arg : args) {
      if (arg.kind == SpecArg::Kind::kRef) ++numReaders_[arg.text];
      countReaders(arg.items);
    }
  }

  // The flags of the gradients that a backward is asked for, or nullptr. Tracing declares some gradients that it is not
  // asked for, and then it returns None.
  static const std::vector<SpecArg>* outputMaskOf(const SpecNode& node) {
    const auto keyword = node.kwargs.find("output_mask");
    const SpecArg* mask = keyword != node.kwargs.end() ? &keyword->second
                          : node.args.empty()          ? nullptr
                                                       : &node.args.back();
    const auto isFlag = [](const SpecArg& item) { return item.kind == SpecArg::Kind::kBool; };
    const bool isMask = mask && mask->kind == SpecArg::Kind::kList && mask->items.size() == node.type.items.size() &&
                        std::ranges::all_of(mask->items, isFlag);
    return isMask && node.target.ends_with("_backward.default") ? &mask->items : nullptr;
  }

  StatusOr<Argument> toArgument(const SpecArg& arg, Node& call) {
    switch (arg.kind) {
      case SpecArg::Kind::kNone: return Argument{};
      case SpecArg::Kind::kBool: return Argument::ofBool(arg.boolean);
      case SpecArg::Kind::kInteger: return Argument::ofInteger(arg.integer);
      case SpecArg::Kind::kFloat: return Argument::ofFloat(arg.number);
      case SpecArg::Kind::kString: return Argument::ofString(arg.text);
      case SpecArg::Kind::kDType: return Argument::ofDType(arg.dtype);
      case SpecArg::Kind::kRef: return toReference(arg, call);
      case SpecArg::Kind::kList: break;
    }
    Argument list = Argument::ofList({});
    for (const SpecArg& item : arg.items) {
      AG_ASSIGN_OR_RETURN(Argument argument, toArgument(item, call));
      list.items.push_back(std::move(argument));
    }
    return list;
  }

  StatusOr<Argument> toReference(const SpecArg& arg, Node& call) {
    AG_ASSIGN_OR_RETURN(const Binding* binding, lookUp(arg.text));
    if (binding->scalar) return Argument::ofInteger(*binding->scalar);
    if (binding->isFloat) return unsupported("a number made from sizes as an argument of an operator left to ATen");
    if (binding->values.size() != 1) return unsupported("a tuple as an argument");
    if (binding->values[0] == kNoValue) return Argument{};
    call.inputs.push_back(binding->values[0]);
    return Argument::ofInput(static_cast<int32_t>(call.inputs.size() - 1));
  }

  Status importOutput(const SpecNode& node) {
    if (node.args.size() != 1) return invalidArgument("the output node takes one list");
    const SpecArg& list = node.args[0];
    for (const SpecArg& item : list.kind == SpecArg::Kind::kList ? list.items : std::vector<SpecArg>{list}) {
      AG_RETURN_IF_ERROR(addOutput(item));
    }
    return {};
  }

  Status addOutput(const SpecArg& item) {
    if (item.kind == SpecArg::Kind::kNone) {
      graph_.outputs.push_back(kNoValue);
      return {};
    }
    if (item.kind == SpecArg::Kind::kInteger) {
      graph_.outputs.push_back(addScalarOutput(item.integer));
      return {};
    }
    if (item.kind != SpecArg::Kind::kRef) return unsupported("an output that is neither tensor, integer nor None");
    AG_ASSIGN_OR_RETURN(const Binding* binding, lookUp(item.text));
    if (binding->scalar) {
      graph_.outputs.push_back(addScalarOutput(*binding->scalar));
      return {};
    }
    if (binding->isFloat) return unsupported("an output that is a number made from sizes");
    if (binding->values.size() != 1) return unsupported("an output that is a tuple");
    graph_.outputs.push_back(binding->values[0]);
    return {};
  }

  ValueId addScalarOutput(const SymExpr& expr) {
    return graph_.addScalar(formatText("scalar.{}", graph_.values.size()), expr);
  }

  StatusOr<const Binding*> lookUp(const std::string& name) const {
    auto found = bindings_.find(name);
    if (found == bindings_.end()) return invalidArgument("refers to \"" + name + "\", which no earlier node defines");
    return &found->second;
  }

  const Spec& spec_;
  Graph graph_;
  Bindings bindings_;
  std::map<std::string, int, std::less<>> numReaders_;  // by name of a spec node
};

}  // namespace

StatusOr<Graph> importGraphSpec(std::string_view json, Device device) {
  AG_ASSIGN_OR_RETURN(Spec spec, readSpec(json));
  return Importer(spec, device).import();
}

}  // namespace agspeed::compiler
