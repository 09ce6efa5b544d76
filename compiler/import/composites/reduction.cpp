// SPDX-License-Identifier: Apache-2.0
// Builders of reductions: sum, mean, max, min, any, all, variance over trailing dimensions. Sum and mean are also built
// over leading dimensions and over whole tensors if the source is native, so that it need not be written first.
#include <algorithm>

#include "compiler/import/expression.h"
#include "compiler/import/op_table.h"
#include "compiler/import/trailing_dims.h"

namespace agspeed::compiler {
namespace {

struct Row {
  Operand elements;  ///< converted to the dtype to reduce in
  size_t numDims = 0;
  SymExpr size;
  bool keepsDims = false;
};

bool has(OpImport& op, const std::string& parameter) {
  return std::ranges::find(op.parameters(), parameter) != op.parameters().end();
}

// `accumulate`: returns the dtype to reduce in for the result's dtype.
StatusOr<Row> loadRow(OpImport& op, DType (*accumulate)(DType)) {
  AG_ASSIGN_OR_RETURN(TensorType result, op.resultType());
  if (!op.isTensor("x")) return unsupported("the source is not a tensor");
  const TensorType type = op.typeOf("x");
  if (type.dtype == DType::kC64 || type.dtype == DType::kC128) return unsupported("complex numbers are left to ATen");
  std::vector<int64_t> dims;
  if (has(op, "dim")) {
    AG_ASSIGN_OR_RETURN(dims, op.integers("dim"));
  }
  Row row;
  AG_ASSIGN_OR_RETURN(row.numDims, trailingDims(type, dims, op.emitter().graph().hints));
  row.elements = op.emitter().cast(op.emitter().use(op.tensor("x")), accumulate(result.dtype));
  row.size = rowSize(type, row.numDims);
  row.keepsDims = has(op, "keepdim") && op.flag("keepdim");
  return row;
}

struct Sum {
  Operand value;
  SymExpr count;  ///< elements of each sum
};

// Vectors run along the columns, so they need a few; wide rows of sums leave the first-level cache.
constexpr int64_t kFewestColumns = 8;
constexpr int64_t kMostColumns = 16384;

const Node* producerOf(const Graph& graph, ValueId value) {
  auto makes = [&](const Node& node) { return std::ranges::find(node.results, value) != node.results.end(); };
  auto found = std::find_if(graph.nodes.rbegin(), graph.nodes.rend(), makes);
  return found == graph.nodes.rend() ? nullptr : &*found;
}

// The source of views that only regroup the dimensions before the last numKept.
ValueId behindRegrouping(const Graph& graph, ValueId value, size_t numKept) {
  while (const Node* node = producerOf(graph, value)) {
    bool isView = node->kind == NodeKind::kCall &&
                  (node->target == "aten.view.default" || node->target == "aten._unsafe_view.default");
    if (!isView) return value;
    const Dims& to = graph.typeOf(value).sizes;
    const Dims& from = graph.typeOf(node->inputs[0]).sizes;
    if (from.size() <= numKept) return value;
    auto last = [&](const Dims& dims) { return Dims(dims.end() - static_cast<std::ptrdiff_t>(numKept), dims.end()); };
    if (!sameDims(last(to), last(from))) return value;
    value = node->inputs[0];
  }
  return value;
}

bool isNative(const Graph& graph, ValueId value) {
  const Node* node = producerOf(graph, value);
  bool isConstant = node && node->kind == NodeKind::kPointwise && node->op == PointwiseOp::kConstant;
  return node && !isConstant && (node->kind == NodeKind::kPointwise || node->kind == NodeKind::kReduce);
}

StatusOr<Sum> sumLeading(OpImport& op, DType dtype) {
  const Graph& graph = op.emitter().graph();
  AG_ASSIGN_OR_RETURN(std::vector<int64_t> dims, op.integers("dim"));
  auto rank = static_cast<int64_t>(op.typeOf("x").rank());
  for (int64_t& dim : dims) dim = dim < 0 ? dim + rank : dim;
  std::ranges::sort(dims);
  size_t numKept = static_cast<size_t>(rank) - dims.size();
  for (size_t i = 0; i < dims.size(); ++i) {
    if (dims[i] != static_cast<int64_t>(i)) return unsupported("reduces other dimensions than the first ones");
  }
  if (dims.empty() || numKept == 0) return unsupported("leaves no columns");
  ValueId source = behindRegrouping(graph, op.tensor("x"), numKept);
  if (!isNative(graph, source)) return unsupported("there is nothing to fuse the sum with");
  const TensorType type = graph.typeOf(source);
  size_t numRowDims = type.rank() - numKept;
  int64_t columns = estimate(rowSize(type, numKept), graph.hints);
  if (!isContiguousFrom(type, numRowDims) || columns < kFewestColumns || columns > kMostColumns) {
    return unsupported("the columns are too few, too many or not contiguous");
  }
  SymExpr count = numElements(Dims(type.sizes.begin(), type.sizes.begin() + static_cast<std::ptrdiff_t>(numRowDims)));
  Operand elements = op.emitter().cast(op.emitter().use(source), dtype);
  return Sum{op.emitter().sumRows(elements, numRowDims, op.flag("keepdim") ? dims.size() : 0), count};
}

StatusOr<Sum> sumWhole(OpImport& op, DType dtype) {
  const TensorType type = op.typeOf("x");
  AG_ASSIGN_OR_RETURN(TensorType result, op.resultType());
  bool hasSteps = op.emitter().firstStepDims(type.sizes, type.rank()) > 0;
  if (result.rank() != 0 || !hasSteps || !isContiguous(type)) return unsupported("another form than a whole tensor");
  if (!isNative(op.emitter().graph(), op.tensor("x"))) return unsupported("there is nothing to fuse the sum with");
  Operand source = op.emitter().cast(op.emitter().use(op.tensor("x")), dtype);
  Operand sum = op.emitter().reduce(PointwiseOp::kReduceSum, source, type.rank(), /*keepDims=*/false);
  return Sum{sum, numElements(type.sizes)};
}

StatusOr<Sum> sumOf(OpImport& op) {
  StatusOr<Row> row = loadRow(op, computeType);
  if (row.hasValue()) {
    Operand sum = op.emitter().reduce(PointwiseOp::kReduceSum, row->elements, row->numDims, row->keepsDims);
    return Sum{sum, row->size};
  }
  if (row.status().code() != StatusCode::kUnsupported || !op.isTensor("x")) return row.status();
  AG_ASSIGN_OR_RETURN(TensorType result, op.resultType());
  if (!isFloat(result.dtype) || !isFloat(op.typeOf("x").dtype)) return row.status();
  DType dtype = computeType(result.dtype);
  StatusOr<Sum> leading = has(op, "dim") ? sumLeading(op, dtype) : unsupported("no dimensions are named");
  return leading.hasValue() ? leading : sumWhole(op, dtype);
}

Status buildExtremum(OpImport& op, PointwiseOp reduction) {
  AG_ASSIGN_OR_RETURN(Row row, loadRow(op, computeType));
  if (row.elements.dtype == DType::kBool) return unsupported("the extremum of bool is left to ATen");
  return op.setResult(op.emitter().reduce(reduction, row.elements, row.numDims, row.keepsDims));
}

// any and all: the maximum or minimum of values 0 and 1.
Status buildQuantifier(OpImport& op, PointwiseOp reduction) {
  AG_ASSIGN_OR_RETURN(Row row, loadRow(op, [](DType) { return DType::kBool; }));
  Operand bits = op.emitter().cast(row.elements, DType::kI32);
  Operand extremum = op.emitter().reduce(reduction, bits, row.numDims, row.keepsDims);
  return op.setResult(op.emitter().cast(extremum, DType::kBool));
}

struct Moments {
  Operand mean;
  Operand variance;
};

// The mean of residuals corrects a first, rounded mean, so that a large mean costs no accuracy.
StatusOr<Moments> buildMoments(OpImport& op) {
  AG_ASSIGN_OR_RETURN(Row row, loadRow(op, computeType));
  const DType compute = row.elements.dtype;
  if (!isFloat(compute)) return unsupported("the moments of integers are left to ATen");
  double correction = 1;
  if (!op.isNone("correction")) {
    AG_ASSIGN_OR_RETURN(correction, op.number("correction"));
  }
  bool hasFreedom = !row.size.isConstant() || row.size.constant() > correction;
  if (!hasFreedom) return unsupported("no degrees of freedom, of which ATen warns");
  Emitter& emitter = op.emitter();
  NamedOperands names = {{"x", row.elements},
                         {"count", emitter.symbol(row.size, compute)},
                         {"correction", emitter.number(correction, compute)}};
  auto evaluate = [&](std::string_view expression) { return emitExpression(expression, names, compute, emitter); };
  auto sumOver = [&](const Operand& elements, bool keepsDims) {
    return emitter.reduce(PointwiseOp::kReduceSum, elements, row.numDims, keepsDims);
  };
  names["sum"] = sumOver(row.elements, /*keepsDims=*/true);
  AG_ASSIGN_OR_RETURN(names["shifted"], evaluate("x - sum / count"));
  AG_ASSIGN_OR_RETURN(names["squares"], evaluate("shifted * shifted"));
  names["residual"] = sumOver(names["shifted"], row.keepsDims);
  names["squared"] = sumOver(names["squares"], row.keepsDims);
  if (!row.keepsDims) names["sum"] = sumOver(row.elements, /*keepsDims=*/false);
  Moments moments;
  AG_ASSIGN_OR_RETURN(moments.mean, evaluate("sum / count + residual / count"));
  AG_ASSIGN_OR_RETURN(moments.variance, evaluate("maximum(squared - residual * residual / count, 0) / "
                                                 "maximum(count - correction, 0)"));
  return moments;
}

}  // namespace

Status buildSum(OpImport& op) {
  AG_ASSIGN_OR_RETURN(TensorType result, op.resultType());
  if (result.dtype == DType::kBool) return unsupported("a bool sum is left to ATen");
  AG_ASSIGN_OR_RETURN(Sum sum, sumOf(op));
  return op.setResult(sum.value);
}

Status buildMean(OpImport& op) {
  AG_ASSIGN_OR_RETURN(TensorType result, op.resultType());
  if (!isFloat(result.dtype)) return unsupported("the mean of integers is left to ATen");
  AG_ASSIGN_OR_RETURN(Sum sum, sumOf(op));
  Operand count = op.emitter().symbol(sum.count, sum.value.dtype);
  AG_ASSIGN_OR_RETURN(Operand mean, op.emitter().apply(PointwiseOp::kDiv, {sum.value, count}));
  return op.setResult(mean);
}

Status buildMax(OpImport& op) { return buildExtremum(op, PointwiseOp::kReduceMax); }

Status buildMin(OpImport& op) { return buildExtremum(op, PointwiseOp::kReduceMin); }

Status buildAny(OpImport& op) { return buildQuantifier(op, PointwiseOp::kReduceMax); }

Status buildAll(OpImport& op) { return buildQuantifier(op, PointwiseOp::kReduceMin); }

Status buildVar(OpImport& op) {
  AG_ASSIGN_OR_RETURN(Moments moments, buildMoments(op));
  return op.setResult(moments.variance);
}

Status buildVarMean(OpImport& op) {
  AG_ASSIGN_OR_RETURN(Moments moments, buildMoments(op));
  AG_RETURN_IF_ERROR(op.setResult(moments.variance, 0));
  return op.setResult(moments.mean, 1);
}

}  // namespace agspeed::compiler
