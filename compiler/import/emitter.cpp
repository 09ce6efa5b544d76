// SPDX-License-Identifier: Apache-2.0
#include "compiler/import/emitter.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "compiler/import/promotion.h"

namespace agspeed::compiler {
namespace {

// Arithmetic on bool is logic; nullopt for operations that bool does not have.
std::optional<PointwiseOp> boolVersion(PointwiseOp op) {
  switch (op) {
    case PointwiseOp::kAdd:
    case PointwiseOp::kMaximum:
    case PointwiseOp::kBitwiseOr:
    case PointwiseOp::kLogicalOr: return PointwiseOp::kLogicalOr;
    case PointwiseOp::kMul:
    case PointwiseOp::kMinimum:
    case PointwiseOp::kBitwiseAnd:
    case PointwiseOp::kLogicalAnd: return PointwiseOp::kLogicalAnd;
    case PointwiseOp::kBitwiseXor:
    case PointwiseOp::kLogicalXor: return PointwiseOp::kLogicalXor;
    case PointwiseOp::kBitwiseNot:
    case PointwiseOp::kLogicalNot: return PointwiseOp::kLogicalNot;
    default: return std::nullopt;
  }
}

bool isComparison(PointwiseOp op) { return op >= PointwiseOp::kEq && op <= PointwiseOp::kGe; }

bool isIntegerOperation(PointwiseOp op) { return op >= PointwiseOp::kBitwiseAnd && op <= PointwiseOp::kShiftRight; }

// Integer operations that ATen defines for all inputs (a division by zero raises there).
bool isTotalOnIntegers(PointwiseOp op) {
  switch (op) {
    case PointwiseOp::kAbs:
    case PointwiseOp::kNeg:
    case PointwiseOp::kRelu:
    case PointwiseOp::kSign:
    case PointwiseOp::kBitwiseNot:
    case PointwiseOp::kAdd:
    case PointwiseOp::kSub:
    case PointwiseOp::kMul:
    case PointwiseOp::kMaximum:
    case PointwiseOp::kMinimum: return true;
    default: return isIntegerOperation(op);
  }
}

// The operation for inputs of `dtype`; nullopt if ATen or the kernels have none.
std::optional<PointwiseOp> versionFor(PointwiseOp op, DType dtype) {
  if (op == PointwiseOp::kWhere || op == PointwiseOp::kCast || isComparison(op)) return op;
  if (dtype == DType::kBool) return boolVersion(op);
  if (boolVersion(op) == op) return std::nullopt;  // logical operations take bool only
  if (isFloat(dtype)) {
    bool needsIntegers = isIntegerOperation(op) || op == PointwiseOp::kBitwiseNot;
    return needsIntegers ? std::nullopt : std::optional(op);
  }
  if (op == PointwiseOp::kFma) return op;
  return isInteger(dtype) && isTotalOnIntegers(op) ? std::optional(op) : std::nullopt;
}

std::optional<double> foldNumbers(PointwiseOp op, const std::vector<Operand>& in) {
  switch (op) {
    case PointwiseOp::kNeg: return -in[0].number;
    case PointwiseOp::kAdd: return in[0].number + in[1].number;
    case PointwiseOp::kSub: return in[0].number - in[1].number;
    case PointwiseOp::kMul: return in[0].number * in[1].number;
    case PointwiseOp::kDiv: return in[0].number / in[1].number;
    default: return std::nullopt;
  }
}

// How many rows are added up one by one; 0: all of them. About the square root of the number of rows, so that errors
// stay small and there are enough blocks for threads.
int64_t rowsPerBlock(int64_t rows, int64_t elements) {
  constexpr int64_t kLongest = 64;
  constexpr int64_t kSmall = 1 << 15;
  if (rows <= kLongest && elements <= kSmall) return 0;
  int64_t block = 8;
  while (block < kLongest && block * block < rows) block *= 2;
  return block < rows ? block : 0;
}

}  // namespace

Operand Emitter::number(double value, DType dtype) const {
  double held = dtype == DType::kBool ? double(value != 0) : isFloat(dtype) ? value : std::trunc(value);
  return {.isNumber = true, .number = roundTo(dtype, held), .dtype = dtype};
}

TensorType Emitter::typeFor(DType dtype, const Dims& sizes) const {
  if (sameDims(sizes, layout_.sizes)) return {dtype, sizes, layout_.strides};
  return contiguousType(dtype, sizes);
}

ValueId Emitter::addNode(PointwiseOp op, std::vector<ValueId> inputs, TensorType type) {
  Node node;
  bool isReduction = infoOf(op).isReduction || op == PointwiseOp::kSumRows;
  node.kind = isReduction ? NodeKind::kReduce : NodeKind::kPointwise;
  node.op = op;
  node.inputs = std::move(inputs);
  node.origin = origin_;
  node.results = {graph_.addTemporary(origin_, std::move(type))};
  graph_.nodes.push_back(std::move(node));
  return graph_.nodes.back().results[0];
}

ValueId Emitter::place(const Operand& a) {
  if (!a.isNumber) return a.value;
  ValueId value = addNode(PointwiseOp::kConstant, {}, contiguousType(a.dtype, {}));
  graph_.nodes.back().constant = a.number;
  return value;
}

Operand Emitter::cast(const Operand& a, DType dtype) {
  if (a.dtype == dtype) return a;
  if (a.isNumber) return number(a.number, dtype);
  const Dims& own = graph_.typeOf(a.value).sizes;
  TensorType type = typeFor(dtype, broadcastsTo(own, layout_.sizes) ? layout_.sizes : own);
  return use(addNode(PointwiseOp::kCast, {a.value}, std::move(type)));
}

Operand Emitter::convert(const Operand& a, DType dtype) {
  if (a.dtype == dtype) return a;
  return use(addNode(PointwiseOp::kCast, {a.value}, contiguousType(dtype, graph_.typeOf(a.value).sizes)));
}

StatusOr<Operand> Emitter::apply(PointwiseOp op, std::vector<Operand> inputs) {
  if (op == PointwiseOp::kWhere && inputs[0].isNumber) return inputs[0].number != 0 ? inputs[1] : inputs[2];
  const DType dtype = inputs.back().dtype;
  if (isComparison(op) && dtype == DType::kBool) {
    for (Operand& input : inputs) input = cast(input, DType::kU8);
  }
  std::optional<PointwiseOp> version = versionFor(op, dtype);
  if (!version) {
    return unsupported(std::string(infoOf(op).name) + " of " + std::string(toString(dtype)) + " is left to ATen");
  }
  bool areNumbers = std::ranges::all_of(inputs, [](const Operand& input) { return input.isNumber; });
  if (std::optional<double> folded = areNumbers ? foldNumbers(op, inputs) : std::nullopt) return number(*folded, dtype);
  std::vector<ValueId> values;
  Dims sizes;
  for (const Operand& input : inputs) {
    values.push_back(place(input));
    sizes = broadcastDims(sizes, graph_.typeOf(values.back()).sizes);
  }
  for (ValueId value : values) {
    if (!broadcastsTo(graph_.typeOf(value).sizes, sizes)) return unsupported("only a guard makes the sizes equal");
  }
  bool givesBool = isComparison(op) || op == PointwiseOp::kIsNan || op == PointwiseOp::kIsInf;
  return use(addNode(*version, std::move(values), typeFor(givesBool ? DType::kBool : dtype, sizes)));
}

size_t Emitter::firstStepDims(const Dims& sizes, size_t numDims) const {
  constexpr int64_t kShortest = 64;
  constexpr int64_t kLongest = 32768;
  auto sizeOfLast = [&](size_t n) {
    return estimate(numElements(Dims(sizes.end() - static_cast<std::ptrdiff_t>(n), sizes.end())), graph_.hints);
  };
  int64_t whole = sizeOfLast(numDims);
  for (size_t n = 1; n < numDims && whole > kLongest; ++n) {
    int64_t row = sizeOfLast(n);
    if (row >= kShortest && row <= kLongest && whole / row <= kLongest) return n;
  }
  return 0;
}

Operand Emitter::reduce(PointwiseOp op, const Operand& a, size_t numDims, bool keepDims) {
  Dims sizes = graph_.typeOf(a.value).sizes;
  size_t first = op == PointwiseOp::kReduceSum && isFloat(a.dtype) ? firstStepDims(sizes, numDims) : 0;
  if (first > 0) return reduce(op, reduce(op, a, first, keepDims), keepDims ? numDims : numDims - first, keepDims);
  for (size_t i = sizes.size() - numDims; i < sizes.size(); ++i) sizes[i] = 1;
  if (!keepDims) sizes.resize(sizes.size() - numDims);
  ValueId value = addNode(op, {a.value}, contiguousType(a.dtype, std::move(sizes)));
  graph_.nodes.back().numReducedDims = static_cast<int32_t>(numDims);
  return use(value);
}

Operand Emitter::sumRows(const Operand& a, size_t numDims, size_t numOnes) {
  Operand sum = a;
  while (true) {
    const Dims sizes = graph_.typeOf(sum.value).sizes;
    auto firstColumn = sizes.begin() + static_cast<std::ptrdiff_t>(numDims);
    SymExpr rows = numElements(Dims(sizes.begin(), firstColumn));
    int64_t elements = estimate(numElements(sizes), graph_.hints);
    int64_t block = rowsPerBlock(estimate(rows, graph_.hints), elements);
    Dims result = block > 0 ? Dims{floorDiv(rows + (block - 1), block)} : Dims(numOnes, SymExpr(1));
    result.insert(result.end(), firstColumn, sizes.end());
    sum = use(addNode(PointwiseOp::kSumRows, {sum.value}, contiguousType(a.dtype, std::move(result))));
    graph_.nodes.back().numReducedDims = static_cast<int32_t>(numDims);
    graph_.nodes.back().blockRows = block;
    if (block == 0) return sum;
    numDims = 1;
  }
}

Operand Emitter::unsqueezeLast(const Operand& a, size_t numDims) {
  TensorType type = graph_.typeOf(a.value);
  std::vector<int32_t> viewDims;
  for (size_t i = 0; i < type.rank(); ++i) viewDims.push_back(static_cast<int32_t>(i));
  viewDims.resize(type.rank() + numDims, -1);
  type.sizes.resize(viewDims.size(), 1);
  type.strides.resize(viewDims.size(), 1);
  std::vector<Argument> sizes;
  for (const SymExpr& size : type.sizes) sizes.push_back(Argument::ofInteger(size));
  std::vector<Argument> arguments = {Argument::ofInput(0), Argument::ofList(sizes)};
  return use(view("aten.view.default", a.value, std::move(arguments), {0, std::move(viewDims)}, type));
}

ValueId Emitter::view(std::string target, ValueId source, std::vector<Argument> arguments, const ViewGeometry& geometry,
                      const TensorType& type) {
  ValueId value = call(std::move(target), {source}, std::move(arguments), {type})[0];
  Node& node = graph_.nodes.back();
  node.effects.mayAlias = true;
  node.viewOffset = geometry.offset;
  node.viewDims = geometry.dims;
  node.reason = "a call or an output needs the view";
  return value;
}

ValueId Emitter::join(const std::vector<Part>& parts, const TensorType& type, const std::string& name) {
  Node node;
  node.kind = NodeKind::kJoin;
  node.origin = origin_;
  node.effects.mayAlias = true;
  for (const Part& part : parts) {
    if (part.value.isNumber) {
      node.inputs.push_back(addNode(PointwiseOp::kConstant, {}, part.type));
      graph_.nodes.back().constant = number(part.value.number, type.dtype).number;
    } else {
      node.inputs.push_back(addNode(PointwiseOp::kCast, {part.value.value}, part.type));
    }
    node.offsets.push_back(part.offset);
  }
  node.results = {graph_.addValue(name, type)};
  graph_.nodes.push_back(std::move(node));
  return graph_.nodes.back().results[0];
}

Operand Emitter::copy(const Operand& a, const TensorType& type) {
  return use(addNode(PointwiseOp::kCast, {a.value}, type));
}

ValueId Emitter::materialize(const Operand& a, const TensorType& type, const std::string& name) {
  if (a.isNumber) {
    ValueId value = addNode(PointwiseOp::kConstant, {}, type);
    graph_.nodes.back().constant = number(a.number, type.dtype).number;
    graph_.values[value].name = name;
    return value;
  }
  bool isOwn = false;
  for (size_t i = firstOwnNode_; i < graph_.nodes.size(); ++i) isOwn |= graph_.nodes[i].results[0] == a.value;
  ValueId value = a.value;
  if (!isOwn || materialized_.contains(value) || !sameType(type, graph_.typeOf(value)))
    value = addNode(PointwiseOp::kCast, {value}, type);
  graph_.values[value].name = name;
  materialized_.insert(value);
  return value;
}

std::vector<ValueId> Emitter::call(std::string target, std::vector<ValueId> inputs, std::vector<Argument> arguments,
                                   const std::vector<TensorType>& types) {
  Node node;
  node.kind = NodeKind::kCall;
  node.target = std::move(target);
  node.inputs = std::move(inputs);
  node.arguments = std::move(arguments);
  node.origin = origin_;
  for (const TensorType& type : types) node.results.push_back(graph_.addTemporary(origin_, type));
  std::vector<ValueId> results = node.results;
  graph_.nodes.push_back(std::move(node));
  return results;
}

Operand Emitter::symbol(const SymExpr& expr, DType dtype) {
  if (expr.isConstant()) return number(static_cast<double>(expr.constant()), dtype);
  Argument dtypeArgument = Argument::ofDType(dtype);
  dtypeArgument.name = "dtype";
  return use(call("aten.scalar_tensor.default", {}, {Argument::ofInteger(expr), dtypeArgument},
                  {contiguousType(dtype, {})})[0]);
}

}  // namespace agspeed::compiler
