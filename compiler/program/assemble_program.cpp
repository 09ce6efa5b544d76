// SPDX-License-Identifier: Apache-2.0
#include "compiler/program/assemble_program.h"

#include <algorithm>
#include <set>

namespace agspeed::compiler {
namespace {

using runtime::ExternalArg;
using runtime::Storage;

runtime::TensorType toRuntime(const TensorType& type) { return {type.dtype, type.sizes, type.strides}; }

class Assembler {
 public:
  Assembler(const passes::PlannedGraph& planned, ClusterTable& clusters)
      : planned_(planned), graph_(planned.graph), clusters_(clusters), joins_(joinsOf(planned.graph)) {}

  StatusOr<runtime::Program> assemble() {
    declareValues();
    program_.device = graph_.device;
    program_.inputs = graph_.inputs;
    program_.outputs = graph_.outputs;
    program_.arenaBytes = planned_.memory.arenaBytes;
    auto stage = planned_.stages.stages.begin();
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      addInstruction(graph_.nodes[i]);
      for (ValueId value : planned_.releases.after[i]) {
        program_.instructions.emplace_back().op = runtime::Release{value};
      }
      if (stage == planned_.stages.stages.end() || stage->lastNode != static_cast<int32_t>(i)) continue;
      program_.instructions.emplace_back().op = runtime::GradientsReady{(stage++)->outputs};
    }
    AG_RETURN_IF_ERROR(bindSymbols());
    return std::move(program_);
  }

 private:
  // --- values ---

  void declareValues() {
    program_.values.resize(graph_.values.size());
    std::vector<int32_t> producers = producersOf(graph_);
    for (size_t v = 0; v < graph_.values.size(); ++v) {
      const Value& value = graph_.values[v];
      runtime::ValueDecl& decl = program_.values[v];
      decl.type = toRuntime(value.type);
      decl.isScalar = value.isScalar;
      decl.isOnHost = value.isOnHost;
      decl.symbolValue = value.scalar;
      if (producers[v] >= 0) setStorage(decl, v, graph_.nodes[producers[v]]);
    }
    for (size_t i = 0; i < graph_.inputs.size(); ++i) {
      program_.values[graph_.inputs[i]].storage = Storage::kInput;
      program_.values[graph_.inputs[i]].index = static_cast<int32_t>(i);
    }
  }

  void setStorage(runtime::ValueDecl& decl, size_t value, const Node& producer) {
    if (joins_[value] >= 0) {
      const Node& join = graph_.nodes[joins_[value]];
      decl.storage = Storage::kView;
      decl.source = join.results[0];
      decl.viewOffset = join.offsets[static_cast<size_t>(std::ranges::find(join.inputs, static_cast<ValueId>(value)) -
                                                         join.inputs.begin())];
    } else if (producer.viewOffset) {
      decl.storage = Storage::kView;
      decl.source = producer.inputs[0];
      decl.viewOffset = *producer.viewOffset;
    } else if (producer.kind == NodeKind::kCall) {
      decl.storage = Storage::kExternal;
    } else if (planned_.memory.offsets[value]) {
      decl.storage = Storage::kArena;
      decl.arenaOffset = *planned_.memory.offsets[value];
    } else {
      decl.storage = Storage::kFresh;
    }
  }

  // --- instructions ---

  void addInstruction(const Node& node) {
    if (node.kind == NodeKind::kJoin) return;
    runtime::Instruction instruction;
    instruction.origin = node.origin;
    if (node.kind == NodeKind::kKernel) {
      instruction.op = kernelCall(node);
    } else if (node.viewOffset) {
      instruction.op = runtime::View{node.results[0]};
      addBound(node.inputs[0], *node.viewOffset, spanOf(graph_.typeOf(node.results[0])));
    } else {
      AG_CHECK(node.kind == NodeKind::kCall, "node from " + node.origin + " is neither fused nor a call");
      instruction.op = externalCall(node);
    }
    program_.instructions.push_back(std::move(instruction));
  }

  runtime::KernelCall kernelCall(const Node& node) {
    runtime::KernelCall call;
    call.kernel = clusters_.add(graph_.clusters[node.cluster]);
    call.operands = node.inputs;
    call.operands.insert(call.operands.end(), node.results.begin(), node.results.end());
    for (runtime::ValueId& value : call.operands) {
      if (joins_[value] >= 0) value = graph_.nodes[joins_[value]].results[0];
    }
    call.integers = node.integers;
    call.offsets = node.offsets;
    addBounds(call, graph_.clusters[node.cluster]);
    // If all results are empty, the kernel does not run: the memory of an empty operand may be null.
    const bool isEmpty = std::ranges::all_of(
        node.results, [&](ValueId value) { return isZero(numElements(graph_.typeOf(value).sizes)); });
    call.extent = isEmpty ? SymExpr(0) : node.extent;
    call.grain = node.grain;
    call.name = graph_.clusters[node.cluster].name();
    return call;
  }

  // --- bounds ---

  // The elements from the first to the last one of a tensor that is not empty.
  static SymExpr spanOf(const TensorType& type) {
    SymExpr span = 1;
    for (size_t dim = 0; dim < type.rank(); ++dim) span = span + (type.sizes[dim] - 1) * type.strides[dim];
    return span;
  }

  void addBound(ValueId value, const SymExpr& offset, const SymExpr& span) {
    if (isZero(offset)) return;
    program_.bounds.push_back({value, offset, offset + span});
  }

  // The integers of a launch are its sizes, then the strides of each operand.
  void addBounds(const runtime::KernelCall& call, const Cluster& cluster) {
    size_t numLoops = static_cast<size_t>(cluster.outerRank) + 1;
    for (size_t i = 0; i < call.offsets.size(); ++i) {
      SymExpr span = 1;
      for (size_t loop = 0; loop < numLoops; ++loop) {
        span = span + (call.integers[loop] - 1) * call.integers[numLoops * (i + 1) + loop];
      }
      addBound(call.operands[i], call.offsets[i], span);
    }
  }

  runtime::ExternalCall externalCall(const Node& node) {
    runtime::ExternalCall call;
    call.op = node.target;
    call.results = node.results;
    call.reason = node.reason;
    for (const Argument& argument : node.arguments) call.args.push_back(externalArg(node, argument));
    return call;
  }

  ExternalArg externalArg(const Node& node, const Argument& argument) {
    ExternalArg arg;
    arg.name = argument.name;
    if (argument.kind == Argument::Kind::kValue) {
      arg.kind = ExternalArg::Kind::kValue;
      arg.values = {node.inputs[argument.input]};
    } else if (argument.kind == Argument::Kind::kList) {
      fillList(node, argument, arg);
    } else {
      arg.kind = ExternalArg::Kind::kScalar;
      arg.scalars = {scalar(argument)};
    }
    return arg;
  }

  void fillList(const Node& node, const Argument& list, ExternalArg& arg) {
    bool hasValues =
        std::ranges::any_of(list.items, [](const Argument& a) { return a.kind == Argument::Kind::kValue; });
    arg.kind = hasValues ? ExternalArg::Kind::kValueList : ExternalArg::Kind::kScalarList;
    for (const Argument& item : list.items) {
      if (hasValues) {
        arg.values.push_back(item.kind == Argument::Kind::kValue ? node.inputs[item.input] : runtime::kNoValue);
      } else {
        arg.scalars.push_back(scalar(item));
      }
    }
  }

  static ExternalArg::Scalar scalar(const Argument& argument) {
    switch (argument.kind) {
      case Argument::Kind::kBool: return argument.boolean;
      case Argument::Kind::kInteger: return argument.integer;
      case Argument::Kind::kFloat: return argument.number;
      case Argument::Kind::kString: return argument.text;
      case Argument::Kind::kDType: return ExternalArg::Type{argument.dtype};
      default: return ExternalArg::None{};
    }
  }

  // --- symbols ---

  // The index of an expression that is a single symbol, or -1.
  static int symbolIndex(const SymExpr& expr) {
    int index = expr.maxSymbol();
    return index >= 0 && expr == SymExpr::symbol(index) ? index : -1;
  }

  void bind(const SymExpr& expr, size_t input, int32_t dim) {
    int symbol = symbolIndex(expr);
    if (symbol < 0) return;
    if (program_.symbols.size() <= static_cast<size_t>(symbol)) {
      program_.symbols.resize(static_cast<size_t>(symbol) + 1, {.input = -1});
    }
    runtime::SymbolBinding& binding = program_.symbols[static_cast<size_t>(symbol)];
    if (binding.input < 0) binding = {static_cast<int32_t>(input), dim};
  }

  Status bindSymbols() {
    for (size_t i = 0; i < graph_.inputs.size(); ++i) {
      const Value& value = graph_.values[graph_.inputs[i]];
      if (value.isScalar) bind(value.scalar, i, -1);
      for (size_t d = 0; d < value.type.sizes.size(); ++d) bind(value.type.sizes[d], i, static_cast<int32_t>(d));
    }
    for (int symbol : usedSymbols()) {
      bool isBound = static_cast<size_t>(symbol) < program_.symbols.size() && program_.symbols[symbol].input >= 0;
      if (!isBound) return unsupported("symbol s{} is not the size of any input", symbol);
    }
    return {};
  }

  std::set<int> usedSymbols() const {
    std::set<int> symbols;
    const auto use = [&](const SymExpr& expr) { expr.addSymbolsTo(symbols); };
    for (const Value& value : graph_.values) {
      std::ranges::for_each(value.type.sizes, use);
      std::ranges::for_each(value.type.strides, use);
      use(value.scalar);
    }
    for (const Node& node : graph_.nodes) {
      std::ranges::for_each(node.integers, use);
      std::ranges::for_each(node.offsets, use);
      if (node.viewOffset) use(*node.viewOffset);
    }
    return symbols;
  }

  const passes::PlannedGraph& planned_;
  const Graph& graph_;
  ClusterTable& clusters_;
  const std::vector<int32_t> joins_;
  runtime::Program program_;
};

void addOrigins(const std::string& list, std::set<std::string>& origins) {
  for (size_t begin = 0; begin < list.size();) {
    size_t end = std::min(list.find(',', begin), list.size());
    origins.insert(list.substr(begin, end - begin));
    begin = end + 1;
  }
}

}  // namespace

int32_t ClusterTable::add(const Cluster& cluster) {
  auto [found, isNew] = indexOf_.emplace(cluster.toString(), static_cast<int32_t>(clusters_.size()));
  if (isNew) clusters_.push_back(cluster);
  return found->second;
}

StatusOr<runtime::Program> assembleProgram(const passes::PlannedGraph& planned, ClusterTable& clusters) {
  return Assembler(planned, clusters).assemble();
}

OperatorCounts countOperators(const Graph& graph) {
  std::set<std::string> compiled;
  std::set<std::string> external;
  for (const Node& node : graph.nodes) {
    bool isView = node.effects.mayAlias && node.effects.isPure();  // or a join, whose parts count
    if (!isView) addOrigins(node.origin, node.kind == NodeKind::kKernel ? compiled : external);
  }
  for (const std::string& name : compiled) external.erase(name);
  return {static_cast<int32_t>(compiled.size()), static_cast<int32_t>(external.size())};
}

}  // namespace agspeed::compiler
