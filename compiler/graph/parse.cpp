// SPDX-License-Identifier: Apache-2.0
// parseGraph: reads the text form that print.cpp writes.
#include <map>

#include "compiler/graph/graph.h"
#include "compiler/graph/text_reader.h"

namespace agspeed::compiler {
namespace {

class GraphReader {
 public:
  explicit GraphReader(std::string_view text) : in_(text) {}

  StatusOr<Graph> read() {
    AG_RETURN_IF_ERROR(in_.expect("graph"));
    if (in_.accept("symbols")) AG_RETURN_IF_ERROR(readHints());
    while (!in_.accept("return")) AG_RETURN_IF_ERROR(readLine());
    AG_RETURN_IF_ERROR(readOutputs());
    while (!in_.atEnd()) {
      AG_ASSIGN_OR_RETURN(Cluster cluster, parseCluster(in_));
      graph_.clusters.push_back(std::move(cluster));
    }
    if (Status status = compiler::verify(graph_); !status.isOk()) return invalidArgument(status.message());
    return std::move(graph_);
  }

 private:
  Status readHints() {
    AG_ASSIGN_OR_RETURN(Dims hints, in_.readSymExprs("[", "]"));
    for (const SymExpr& hint : hints) {
      if (!hint.isConstant()) return in_.fail("a symbol's hint is an integer");
      graph_.hints.push_back(hint.constant());
    }
    return {};
  }

  // Reads "%a, %b = operation : types" or "operation".
  Status readLine() {
    std::vector<std::string> names;
    while (in_.accept("%") || in_.accept("none")) {
      AG_RETURN_IF_ERROR(readResultName(names));
      if (!in_.accept(",")) break;
    }
    if (!names.empty()) AG_RETURN_IF_ERROR(in_.expect("="));
    if (in_.accept("input")) return readInput(names);
    if (in_.accept("int")) return readScalar(names).hasValue() ? Status() : in_.fail("expected an integer expression");
    Node node;
    AG_RETURN_IF_ERROR(readOperation(node));
    if (!names.empty()) AG_RETURN_IF_ERROR(readResults(node, names));
    if (in_.accept("@")) {
      AG_ASSIGN_OR_RETURN(node.origin, in_.readString());
    }
    if (in_.accept("because")) {
      AG_ASSIGN_OR_RETURN(node.reason, in_.readString());
    }
    graph_.nodes.push_back(std::move(node));
    return {};
  }

  Status readResultName(std::vector<std::string>& names) {
    StatusOr<std::string> name = in_.readWord();
    names.push_back(name.hasValue() ? *name : "");
    return {};
  }

  Status readInput(const std::vector<std::string>& names) {
    if (in_.accept("int")) {
      AG_ASSIGN_OR_RETURN(ValueId scalar, readScalar(names));
      graph_.inputs.push_back(scalar);
      return {};
    }
    AG_ASSIGN_OR_RETURN(TensorType type, readType());
    graph_.inputs.push_back(define(names.at(0), std::move(type)));
    return {};
  }

  StatusOr<ValueId> readScalar(const std::vector<std::string>& names) {
    AG_ASSIGN_OR_RETURN(SymExpr scalar, in_.readSymExpr());
    ValueId value = graph_.addScalar(names.at(0), std::move(scalar));
    values_[names[0]] = value;
    return value;
  }

  Status readOperation(Node& node) {
    if (in_.accept("call")) return readCall(node);
    if (in_.accept("kernel")) return readKernel(node);
    if (in_.accept("join")) return readJoin(node);
    AG_ASSIGN_OR_RETURN(std::string name, in_.readWord());
    AG_ASSIGN_OR_RETURN(node.op, pointwiseOpFromString(name));
    if (node.op == PointwiseOp::kConstant) {
      AG_ASSIGN_OR_RETURN(node.constant, in_.readDouble());
    }
    for (int i = 0; i < infoOf(node.op).arity; ++i) {
      if (i > 0) AG_RETURN_IF_ERROR(in_.expect(","));
      AG_RETURN_IF_ERROR(readUse(node));
    }
    if (!infoOf(node.op).isReduction && node.op != PointwiseOp::kSumRows) return {};
    node.kind = NodeKind::kReduce;
    AG_RETURN_IF_ERROR(in_.expect("dims"));
    AG_ASSIGN_OR_RETURN(int64_t numDims, in_.readInteger());
    node.numReducedDims = static_cast<int32_t>(numDims);
    if (in_.accept("block")) {
      AG_ASSIGN_OR_RETURN(node.blockRows, readBracketed());
    }
    return {};
  }

  Status readCall(Node& node) {
    node.kind = NodeKind::kCall;
    AG_ASSIGN_OR_RETURN(node.target, in_.readString());
    AG_RETURN_IF_ERROR(in_.expect("("));
    AG_RETURN_IF_ERROR(readArguments(node, node.arguments, ")"));
    if (in_.accept("view")) AG_RETURN_IF_ERROR(readView(node));
    node.effects.isRandom = in_.accept("random");
    node.effects.isOpaque = in_.accept("opaque");
    node.effects.mayAlias = in_.accept("alias");
    if (in_.accept("mutates")) {
      AG_ASSIGN_OR_RETURN(node.effects.mutates, readIntegers());
    }
    return {};
  }

  // Reads "[1, 0]", "[0, 1] at [s0 * 8]" or "at [4]" after "view".
  Status readView(Node& node) {
    node.viewOffset = 0;
    bool hasOffset = in_.accept("at");
    if (!hasOffset) {
      AG_ASSIGN_OR_RETURN(node.viewDims, readIntegers());
      hasOffset = in_.accept("at");
    }
    if (hasOffset) {
      AG_ASSIGN_OR_RETURN(node.viewOffset, readBracketed());
    }
    return {};
  }

  Status readJoin(Node& node) {
    node.kind = NodeKind::kJoin;
    node.effects.mayAlias = true;
    do {
      AG_RETURN_IF_ERROR(readUse(node));
      AG_RETURN_IF_ERROR(in_.expect("at"));
      AG_ASSIGN_OR_RETURN(SymExpr offset, readBracketed());
      node.offsets.push_back(std::move(offset));
    } while (in_.accept(","));
    return {};
  }

  Status readKernel(Node& node) {
    node.kind = NodeKind::kKernel;
    AG_ASSIGN_OR_RETURN(int64_t cluster, in_.readInteger());
    node.cluster = static_cast<int32_t>(cluster);
    AG_RETURN_IF_ERROR(in_.expect("("));
    while (!in_.accept(")")) {
      if (!node.inputs.empty()) AG_RETURN_IF_ERROR(in_.expect(","));
      AG_RETURN_IF_ERROR(readUse(node));
    }
    AG_RETURN_IF_ERROR(in_.expect("integers"));
    AG_ASSIGN_OR_RETURN(node.integers, in_.readSymExprs("[", "]"));
    if (in_.accept("offsets")) {
      AG_ASSIGN_OR_RETURN(node.offsets, in_.readSymExprs("[", "]"));
    }
    AG_RETURN_IF_ERROR(in_.expect("extent"));
    AG_ASSIGN_OR_RETURN(node.extent, readBracketed());
    AG_RETURN_IF_ERROR(in_.expect("grain"));
    AG_ASSIGN_OR_RETURN(node.grain, readBracketed());
    return {};
  }

  Status readArguments(Node& node, std::vector<Argument>& arguments, std::string_view close) {
    while (!in_.accept(close)) {
      if (!arguments.empty()) AG_RETURN_IF_ERROR(in_.expect(","));
      AG_ASSIGN_OR_RETURN(Argument argument, readArgument(node));
      arguments.push_back(std::move(argument));
    }
    return {};
  }

  StatusOr<Argument> readArgument(Node& node) {
    if (in_.accept("none")) return Argument{};
    if (in_.accept("true")) return Argument::ofBool(true);
    if (in_.accept("false")) return Argument::ofBool(false);
    if (in_.accept("int")) {
      AG_ASSIGN_OR_RETURN(SymExpr value, in_.readSymExpr());
      return Argument::ofInteger(std::move(value));
    }
    if (in_.accept("float")) {
      AG_ASSIGN_OR_RETURN(double value, in_.readDouble());
      return Argument::ofFloat(value);
    }
    if (in_.accept("dtype")) {
      AG_ASSIGN_OR_RETURN(DType value, in_.readDType());
      return Argument::ofDType(value);
    }
    if (in_.accept("[")) {
      Argument list = Argument::ofList({});
      AG_RETURN_IF_ERROR(readArguments(node, list.items, "]"));
      return list;
    }
    if (in_.accept("%")) return readValueArgument(node);
    if (StatusOr<std::string> text = in_.readString(); text.hasValue()) return Argument::ofString(*text);
    AG_ASSIGN_OR_RETURN(std::string name, in_.readWord());
    AG_RETURN_IF_ERROR(in_.expect("="));
    AG_ASSIGN_OR_RETURN(Argument argument, readArgument(node));
    argument.name = std::move(name);
    return argument;
  }

  StatusOr<Argument> readValueArgument(Node& node) {
    AG_ASSIGN_OR_RETURN(ValueId value, lookUp());
    node.inputs.push_back(value);
    return Argument::ofInput(static_cast<int32_t>(node.inputs.size() - 1));
  }

  Status readUse(Node& node) {
    AG_RETURN_IF_ERROR(in_.expect("%"));
    AG_ASSIGN_OR_RETURN(ValueId value, lookUp());
    node.inputs.push_back(value);
    return {};
  }

  Status readResults(Node& node, const std::vector<std::string>& names) {
    AG_RETURN_IF_ERROR(in_.expect(":"));
    for (size_t i = 0; i < names.size(); ++i) {
      if (i > 0) AG_RETURN_IF_ERROR(in_.expect(","));
      if (in_.accept("none")) {
        node.results.push_back(kNoValue);
        continue;
      }
      AG_ASSIGN_OR_RETURN(TensorType type, readType());
      node.results.push_back(define(names[i], std::move(type)));
    }
    return {};
  }

  Status readOutputs() {
    if (in_.atEnd()) return {};
    do {
      if (in_.accept("none")) {
        graph_.outputs.push_back(kNoValue);
        continue;
      }
      if (!in_.accept("%")) return {};
      AG_ASSIGN_OR_RETURN(ValueId value, lookUp());
      graph_.outputs.push_back(value);
    } while (in_.accept(","));
    return {};
  }

  StatusOr<TensorType> readType() {
    AG_ASSIGN_OR_RETURN(DType dtype, in_.readDType());
    AG_ASSIGN_OR_RETURN(Dims sizes, in_.readSymExprs("[", "]"));
    TensorType type = contiguousType(dtype, std::move(sizes));
    if (in_.accept("{")) {
      type.strides.clear();
      while (!in_.accept("}")) {
        if (!type.strides.empty()) AG_RETURN_IF_ERROR(in_.expect(","));
        AG_ASSIGN_OR_RETURN(SymExpr stride, in_.readSymExpr());
        type.strides.push_back(std::move(stride));
      }
    }
    return type;
  }

  StatusOr<SymExpr> readBracketed() {
    AG_ASSIGN_OR_RETURN(Dims items, in_.readSymExprs("[", "]"));
    if (items.size() != 1) return in_.fail("expected one expression in brackets");
    return items[0];
  }

  StatusOr<std::vector<int32_t>> readIntegers() {
    AG_ASSIGN_OR_RETURN(Dims items, in_.readSymExprs("[", "]"));
    std::vector<int32_t> result;
    for (const SymExpr& item : items) {
      if (!item.isConstant()) return in_.fail("expected integers in brackets");
      result.push_back(static_cast<int32_t>(item.constant()));
    }
    return result;
  }

  StatusOr<ValueId> lookUp() {
    AG_ASSIGN_OR_RETURN(std::string name, in_.readWord());
    auto found = values_.find(name);
    if (found == values_.end()) return in_.fail("%" + name + " is not defined above");
    return found->second;
  }

  ValueId define(const std::string& name, TensorType type) {
    return values_[name] = graph_.addValue(name, std::move(type));
  }

  TextReader in_;
  Graph graph_;
  std::map<std::string, ValueId> values_;
};

}  // namespace

StatusOr<Graph> parseGraph(std::string_view text) { return GraphReader(text).read(); }

}  // namespace agspeed::compiler
