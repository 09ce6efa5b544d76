// SPDX-License-Identifier: Apache-2.0
#include "compiler/graph/cluster.h"

#include <algorithm>
#include <array>

#include "compiler/graph/text_reader.h"
#include "runtime/base/files/content_hash.h"
#include "runtime/base/format.h"

namespace agspeed::compiler {
namespace {

/// Rules for a node's inputs and result; see the typing rules in cluster.h.
enum class Typing : uint8_t { kFree, kArithmetic, kComparison, kLogical, kWhere, kPredicate };

struct Row {
  OpInfo info;
  Typing typing;
};

// Indexed by the enum's value.
constexpr Row kPointwiseOps[] = {
    {{PointwiseOp::kLoad, "load", 0, false}, Typing::kFree},
    {{PointwiseOp::kConstant, "constant", 0, false}, Typing::kFree},
    {{PointwiseOp::kCast, "cast", 1, false}, Typing::kFree},
    {{PointwiseOp::kAbs, "abs", 1, false}, Typing::kArithmetic},
    {{PointwiseOp::kNeg, "neg", 1, false}, Typing::kArithmetic},
    {{PointwiseOp::kExp, "exp", 1, false}, Typing::kArithmetic},
    {{PointwiseOp::kExp2, "exp2", 1, false}, Typing::kArithmetic},
    {{PointwiseOp::kExpm1, "expm1", 1, false}, Typing::kArithmetic},
    {{PointwiseOp::kLog, "log", 1, false}, Typing::kArithmetic},
    {{PointwiseOp::kLog2, "log2", 1, false}, Typing::kArithmetic},
    {{PointwiseOp::kLog10, "log10", 1, false}, Typing::kArithmetic},
    {{PointwiseOp::kLog1p, "log1p", 1, false}, Typing::kArithmetic},
    {{PointwiseOp::kSqrt, "sqrt", 1, false}, Typing::kArithmetic},
    {{PointwiseOp::kRsqrt, "rsqrt", 1, false}, Typing::kArithmetic},
    {{PointwiseOp::kReciprocal, "reciprocal", 1, false}, Typing::kArithmetic},
    {{PointwiseOp::kSin, "sin", 1, false}, Typing::kArithmetic},
    {{PointwiseOp::kCos, "cos", 1, false}, Typing::kArithmetic},
    {{PointwiseOp::kTan, "tan", 1, false}, Typing::kArithmetic},
    {{PointwiseOp::kAsin, "asin", 1, false}, Typing::kArithmetic},
    {{PointwiseOp::kAcos, "acos", 1, false}, Typing::kArithmetic},
    {{PointwiseOp::kAtan, "atan", 1, false}, Typing::kArithmetic},
    {{PointwiseOp::kSinh, "sinh", 1, false}, Typing::kArithmetic},
    {{PointwiseOp::kCosh, "cosh", 1, false}, Typing::kArithmetic},
    {{PointwiseOp::kTanh, "tanh", 1, false}, Typing::kArithmetic},
    {{PointwiseOp::kAsinh, "asinh", 1, false}, Typing::kArithmetic},
    {{PointwiseOp::kAcosh, "acosh", 1, false}, Typing::kArithmetic},
    {{PointwiseOp::kAtanh, "atanh", 1, false}, Typing::kArithmetic},
    {{PointwiseOp::kErf, "erf", 1, false}, Typing::kArithmetic},
    {{PointwiseOp::kErfc, "erfc", 1, false}, Typing::kArithmetic},
    {{PointwiseOp::kSigmoid, "sigmoid", 1, false}, Typing::kArithmetic},
    {{PointwiseOp::kRelu, "relu", 1, false}, Typing::kArithmetic},
    {{PointwiseOp::kFloor, "floor", 1, false}, Typing::kArithmetic},
    {{PointwiseOp::kCeil, "ceil", 1, false}, Typing::kArithmetic},
    {{PointwiseOp::kRound, "round", 1, false}, Typing::kArithmetic},
    {{PointwiseOp::kTrunc, "trunc", 1, false}, Typing::kArithmetic},
    {{PointwiseOp::kSign, "sign", 1, false}, Typing::kArithmetic},
    {{PointwiseOp::kLogicalNot, "logical_not", 1, false}, Typing::kLogical},
    {{PointwiseOp::kBitwiseNot, "bitwise_not", 1, false}, Typing::kArithmetic},
    {{PointwiseOp::kIsNan, "isnan", 1, false}, Typing::kPredicate},
    {{PointwiseOp::kIsInf, "isinf", 1, false}, Typing::kPredicate},
    {{PointwiseOp::kAdd, "add", 2, false}, Typing::kArithmetic},
    {{PointwiseOp::kSub, "sub", 2, false}, Typing::kArithmetic},
    {{PointwiseOp::kMul, "mul", 2, false}, Typing::kArithmetic},
    {{PointwiseOp::kDiv, "div", 2, false}, Typing::kArithmetic},
    {{PointwiseOp::kFloorDiv, "floor_div", 2, false}, Typing::kArithmetic},
    {{PointwiseOp::kRemainder, "remainder", 2, false}, Typing::kArithmetic},
    {{PointwiseOp::kFmod, "fmod", 2, false}, Typing::kArithmetic},
    {{PointwiseOp::kPow, "pow", 2, false}, Typing::kArithmetic},
    {{PointwiseOp::kAtan2, "atan2", 2, false}, Typing::kArithmetic},
    {{PointwiseOp::kMaximum, "maximum", 2, false}, Typing::kArithmetic},
    {{PointwiseOp::kMinimum, "minimum", 2, false}, Typing::kArithmetic},
    {{PointwiseOp::kEq, "eq", 2, false}, Typing::kComparison},
    {{PointwiseOp::kNe, "ne", 2, false}, Typing::kComparison},
    {{PointwiseOp::kLt, "lt", 2, false}, Typing::kComparison},
    {{PointwiseOp::kLe, "le", 2, false}, Typing::kComparison},
    {{PointwiseOp::kGt, "gt", 2, false}, Typing::kComparison},
    {{PointwiseOp::kGe, "ge", 2, false}, Typing::kComparison},
    {{PointwiseOp::kLogicalAnd, "logical_and", 2, false}, Typing::kLogical},
    {{PointwiseOp::kLogicalOr, "logical_or", 2, false}, Typing::kLogical},
    {{PointwiseOp::kLogicalXor, "logical_xor", 2, false}, Typing::kLogical},
    {{PointwiseOp::kBitwiseAnd, "bitwise_and", 2, false}, Typing::kArithmetic},
    {{PointwiseOp::kBitwiseOr, "bitwise_or", 2, false}, Typing::kArithmetic},
    {{PointwiseOp::kBitwiseXor, "bitwise_xor", 2, false}, Typing::kArithmetic},
    {{PointwiseOp::kShiftLeft, "shift_left", 2, false}, Typing::kArithmetic},
    {{PointwiseOp::kShiftRight, "shift_right", 2, false}, Typing::kArithmetic},
    {{PointwiseOp::kWhere, "where", 3, false}, Typing::kWhere},
    {{PointwiseOp::kFma, "fma", 3, false}, Typing::kArithmetic},
    {{PointwiseOp::kReduceSum, "reduce_sum", 1, true}, Typing::kArithmetic},
    {{PointwiseOp::kReduceMax, "reduce_max", 1, true}, Typing::kArithmetic},
    {{PointwiseOp::kReduceMin, "reduce_min", 1, true}, Typing::kArithmetic},
    {{PointwiseOp::kReduceProd, "reduce_prod", 1, true}, Typing::kArithmetic},
    {{PointwiseOp::kSumRows, "sum_rows", 1, false}, Typing::kArithmetic},
};

constexpr bool isIndexedByEnum() {
  for (size_t i = 0; i < std::size(kPointwiseOps); ++i) {
    if (static_cast<size_t>(kPointwiseOps[i].info.op) != i) return false;
  }
  return std::size(kPointwiseOps) == static_cast<size_t>(PointwiseOp::kSumRows) + 1;
}
static_assert(isIndexedByEnum(), "kPointwiseOps must list every PointwiseOp in the enum's order");

constexpr std::array<std::string_view, 4> kColumnNames = {"contiguous", "broadcast", "strided", "transposed"};

std::string_view toString(ClusterOperand::Columns columns) { return kColumnNames[static_cast<size_t>(columns)]; }

bool isSmallFloat(DType dtype) { return dtype == DType::kBF16 || dtype == DType::kF16; }

}  // namespace

const OpInfo& infoOf(PointwiseOp op) { return kPointwiseOps[static_cast<size_t>(op)].info; }

StatusOr<PointwiseOp> pointwiseOpFromString(std::string_view name) {
  for (const Row& row : kPointwiseOps) {
    if (row.info.name == name) return row.info.op;
  }
  return invalidArgument("\"" + std::string(name) + "\" is not a pointwise operation");
}

Status checkTyping(PointwiseOp op, DType result, const std::vector<DType>& inputs) {
  const Row& row = kPointwiseOps[static_cast<size_t>(op)];
  auto fail = [&](std::string_view rule) {
    return invalidArgument(std::string(row.info.name) + " " + std::string(rule));
  };
  if (inputs.size() != static_cast<size_t>(row.info.arity)) {
    return fail(formatText("takes {} inputs, not {}", row.info.arity, inputs.size()));
  }
  auto allInputsAre = [&](DType dtype) { return std::ranges::all_of(inputs, [&](DType d) { return d == dtype; }); };
  switch (row.typing) {
    case Typing::kFree: return {};
    case Typing::kArithmetic:
      if (!allInputsAre(result)) return fail("needs inputs of its result's dtype");
      if (isSmallFloat(result) || result == DType::kBool) return fail("does not compute in bf16, f16 or bool");
      return {};
    case Typing::kComparison:
      if (inputs[0] != inputs[1] || result != DType::kBool) return fail("compares two equal dtypes and gives bool");
      return {};
    case Typing::kLogical:
      if (!allInputsAre(DType::kBool) || result != DType::kBool) return fail("takes and gives bool");
      return {};
    case Typing::kWhere:
      if (inputs[0] != DType::kBool || inputs[1] != result || inputs[2] != result) return fail("takes (bool, T, T)");
      return {};
    case Typing::kPredicate:
      if (result != DType::kBool) return fail("gives bool");
      return {};
  }
  return {};
}

bool Cluster::hasReduction() const {
  return std::ranges::any_of(nodes, [](const ClusterNode& node) { return infoOf(node.op).isReduction; });
}

bool Cluster::sumsRows() const {
  return std::ranges::any_of(nodes, [](const ClusterNode& node) { return node.op == PointwiseOp::kSumRows; });
}

std::string Cluster::toString() const {
  std::string text = formatText("cluster rank {}\n", outerRank);
  if (window) text += "  " + window->toString() + "\n";
  for (size_t i = 0; i < operands.size(); ++i) {
    const ClusterOperand& operand = operands[i];
    text += formatText("  operand {} {}{}{}{}", i, agspeed::toString(operand.dtype),
                       operand.isOutput ? " out " : " in ", compiler::toString(operand.columns),
                       operand.isPerRow     ? " row\n"
                       : operand.isPerBlock ? " block\n"
                                            : "\n");
  }
  for (size_t i = 0; i < nodes.size(); ++i) {
    const ClusterNode& node = nodes[i];
    text += formatText("  n{} = {}", i, infoOf(node.op).name);
    if (node.op == PointwiseOp::kLoad) text += formatText(" {}", node.operand);
    if (node.op == PointwiseOp::kConstant) text += " " + formatDouble(node.constant);
    for (size_t j = 0; j < node.inputs.size(); ++j) text += formatText("{}{}", j ? ", n" : " n", node.inputs[j]);
    text += " : " + std::string(agspeed::toString(node.dtype)) + (node.isPerRow ? " row\n" : "\n");
  }
  for (const ClusterStore& store : stores) {
    text += formatText("  store n{} -> {}\n", store.node, store.operand);
  }
  return text + "end\n";
}

std::string Cluster::name() const {
  constexpr size_t kMaxOperations = 4;
  constexpr size_t kHashDigits = 16;
  std::vector<PointwiseOp> operations;
  for (const ClusterNode& node : nodes) {
    const bool isPlain =
        node.op == PointwiseOp::kLoad || node.op == PointwiseOp::kConstant || node.op == PointwiseOp::kCast;
    if (isPlain || std::ranges::find(operations, node.op) != operations.end()) continue;
    operations.push_back(node.op);
    if (operations.size() == kMaxOperations) break;
  }
  std::string text = "ag_kernel_";
  if (window) text += std::string(infoOf(window->op).name) + "_";
  for (PointwiseOp op : operations) text += std::string(infoOf(op).name) + "_";
  if (operations.empty() && !window) text += "copy_";
  return text + contentHash(toString()).substr(0, kHashDigits);
}

namespace {

/// Reads the number of an operand or a node. They are numbered from 0 in the order of the text.
Status expectNumber(TextReader& in, std::string_view what, size_t expected) {
  AG_ASSIGN_OR_RETURN(const int64_t number, in.readInteger());
  return number == static_cast<int64_t>(expected)
             ? Status()
             : in.fail(formatText("expected {} {}, not {}", what, expected, number));
}

StatusOr<ClusterOperand> parseOperand(TextReader& in, size_t number) {
  ClusterOperand operand;
  AG_RETURN_IF_ERROR(expectNumber(in, "operand", number));
  AG_ASSIGN_OR_RETURN(operand.dtype, in.readDType());
  operand.isOutput = in.accept("out");
  if (!operand.isOutput) AG_RETURN_IF_ERROR(in.expect("in"));
  AG_ASSIGN_OR_RETURN(std::string columns, in.readWord());
  auto name = std::ranges::find(kColumnNames, columns);
  if (name == kColumnNames.end()) return in.fail("expected contiguous, broadcast, strided or transposed");
  operand.columns = static_cast<ClusterOperand::Columns>(name - kColumnNames.begin());
  operand.isPerRow = in.accept("row");
  operand.isPerBlock = !operand.isPerRow && in.accept("block");
  return operand;
}

StatusOr<ClusterNode> parseNode(TextReader& in) {
  ClusterNode node;
  AG_RETURN_IF_ERROR(in.expect("="));
  AG_ASSIGN_OR_RETURN(std::string name, in.readWord());
  AG_ASSIGN_OR_RETURN(node.op, pointwiseOpFromString(name));
  if (node.op == PointwiseOp::kLoad) {
    AG_ASSIGN_OR_RETURN(int64_t operand, in.readInteger());
    node.operand = static_cast<int32_t>(operand);
  }
  if (node.op == PointwiseOp::kConstant) {
    AG_ASSIGN_OR_RETURN(node.constant, in.readDouble());
  }
  for (int i = 0; i < infoOf(node.op).arity; ++i) {
    if (i > 0) AG_RETURN_IF_ERROR(in.expect(","));
    AG_RETURN_IF_ERROR(in.expect("n"));
    AG_ASSIGN_OR_RETURN(int64_t input, in.readInteger());
    node.inputs.push_back(static_cast<int32_t>(input));
  }
  AG_RETURN_IF_ERROR(in.expect(":"));
  AG_ASSIGN_OR_RETURN(node.dtype, in.readDType());
  node.isPerRow = in.accept("row");
  return node;
}

StatusOr<ClusterStore> parseStore(TextReader& in) {
  AG_RETURN_IF_ERROR(in.expect("n"));
  AG_ASSIGN_OR_RETURN(int64_t node, in.readInteger());
  AG_RETURN_IF_ERROR(in.expect("->"));
  AG_ASSIGN_OR_RETURN(int64_t operand, in.readInteger());
  return ClusterStore{static_cast<int32_t>(node), static_cast<int32_t>(operand)};
}

}  // namespace

StatusOr<Cluster> parseCluster(TextReader& in) {
  Cluster cluster;
  AG_RETURN_IF_ERROR(in.expect("cluster"));
  AG_RETURN_IF_ERROR(in.expect("rank"));
  AG_ASSIGN_OR_RETURN(int64_t rank, in.readInteger());
  cluster.outerRank = static_cast<int32_t>(rank);
  if (in.accept("window")) {
    AG_ASSIGN_OR_RETURN(cluster.window, parseWindow(in));
  }
  while (!in.accept("end")) {
    if (in.accept("operand")) {
      AG_ASSIGN_OR_RETURN(ClusterOperand operand, parseOperand(in, cluster.operands.size()));
      cluster.operands.push_back(operand);
    } else if (in.accept("store")) {
      AG_ASSIGN_OR_RETURN(ClusterStore store, parseStore(in));
      cluster.stores.push_back(store);
    } else {
      AG_RETURN_IF_ERROR(in.expect("n"));
      AG_RETURN_IF_ERROR(expectNumber(in, "node", cluster.nodes.size()));
      AG_ASSIGN_OR_RETURN(ClusterNode node, parseNode(in));
      cluster.nodes.push_back(std::move(node));
    }
  }
  AG_RETURN_IF_ERROR(cluster.verify());
  return cluster;
}

StatusOr<Cluster> Cluster::parse(std::string_view text) {
  TextReader in(text);
  return parseCluster(in);
}

namespace {

Status verifyNode(const Cluster& cluster, size_t index) {
  const ClusterNode& node = cluster.nodes[index];
  std::vector<DType> inputs;
  bool usesElements = false;
  for (int32_t input : node.inputs) {
    if (input < 0 || static_cast<size_t>(input) >= index) return invalidArgument("uses a node that is not before it");
    if (cluster.nodes[input].op == PointwiseOp::kSumRows) return invalidArgument("uses a sum over rows");
    inputs.push_back(cluster.nodes[input].dtype);
    usesElements |= !cluster.nodes[input].isPerRow;
  }
  AG_RETURN_IF_ERROR(checkTyping(node.op, node.dtype, inputs));
  if (node.op == PointwiseOp::kSumRows && (node.isPerRow || !usesElements)) {
    return invalidArgument("must be an element node that adds up an element node");
  }
  if (infoOf(node.op).isReduction || node.op == PointwiseOp::kConstant) {
    return node.isPerRow ? Status() : invalidArgument("must be a row node");
  }
  if (node.op != PointwiseOp::kLoad) {
    return node.isPerRow && usesElements ? invalidArgument("is a row node but uses an element node") : Status();
  }
  if (node.operand < 0 || static_cast<size_t>(node.operand) >= cluster.operands.size()) {
    return invalidArgument("loads an operand that does not exist");
  }
  const ClusterOperand& operand = cluster.operands[node.operand];
  if (operand.isOutput) return invalidArgument("loads an output");
  if (operand.dtype != node.dtype) return invalidArgument("has another dtype than the operand it loads");
  return operand.isPerRow == node.isPerRow ? Status() : invalidArgument("has another shape than the operand it loads");
}

Status verifyStore(const Cluster& cluster, const ClusterStore& store) {
  if (store.node < 0 || static_cast<size_t>(store.node) >= cluster.nodes.size()) {
    return invalidArgument("a store names a node that does not exist");
  }
  if (store.operand < 0 || static_cast<size_t>(store.operand) >= cluster.operands.size() ||
      !cluster.operands[store.operand].isOutput) {
    return invalidArgument("a store names an operand that is not an output");
  }
  const ClusterNode& node = cluster.nodes[store.node];
  const ClusterOperand& operand = cluster.operands[store.operand];
  if (node.dtype != operand.dtype || node.isPerRow != operand.isPerRow) {
    return invalidArgument("store n{} -> {}: node and operand differ in dtype or shape", store.node, store.operand);
  }
  if (operand.isPerBlock != (node.op == PointwiseOp::kSumRows)) {
    return invalidArgument("a store to operand {}: sums over rows, and only they, go to block operands", store.operand);
  }
  return {};
}

Status verifyOperand(const Cluster& cluster, const ClusterOperand& operand) {
  if (operand.columns == ClusterOperand::Columns::kTransposed && cluster.outerRank == 0) {
    return invalidArgument("is transposed and needs an outer dimension");
  }
  bool isBroadcast = operand.columns == ClusterOperand::Columns::kBroadcast;
  if (isBroadcast != operand.isPerRow) return invalidArgument("must be per row exactly when it broadcasts its columns");
  bool isPlainOutput = operand.isOutput && operand.columns == ClusterOperand::Columns::kContiguous;
  return operand.isPerBlock && !isPlainOutput ? invalidArgument("is per block and must be a contiguous output")
                                              : Status();
}

}  // namespace

Status Cluster::verify() const {
  if (window) return verifyWindow(*this);
  if (outerRank < 0) return invalidArgument("a cluster's rank must not be negative");
  if (outerRank == 0 && (hasReduction() || sumsRows())) {
    return invalidArgument("a cluster with a reduction needs an outer dimension");
  }
  for (size_t i = 0; i < operands.size(); ++i) {
    AG_RETURN_IF_ERROR(verifyOperand(*this, operands[i]).withContext(formatText("operand {}", i)));
  }
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (Status status = verifyNode(*this, i); !status.isOk()) {
      return invalidArgument("cluster node n{} ({}): {}", i, infoOf(nodes[i].op).name, status.message());
    }
  }
  for (const ClusterStore& store : stores) AG_RETURN_IF_ERROR(verifyStore(*this, store));
  return stores.empty() ? invalidArgument("a cluster must store something") : Status();
}

}  // namespace agspeed::compiler
