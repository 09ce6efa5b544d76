// SPDX-License-Identifier: Apache-2.0
// Builders of reductions over trailing dimensions: sum, mean, max, min, any, all, variance.
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

// `accumulate`: the dtype to reduce in, given the result's.
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

Status buildExtremum(OpImport& op, PointwiseOp reduction) {
  AG_ASSIGN_OR_RETURN(Row row, loadRow(op, computeType));
  if (row.elements.dtype == DType::kBool) return unsupported("the extremum of bool is left to ATen");
  if (row.size.isConstant() && row.size.constant() == 0) return unsupported("an empty row has no extremum");
  return op.setResult(op.emitter().reduce(reduction, row.elements, row.numDims, row.keepsDims));
}

// any and all: the maximum or minimum over 0 and 1.
Status buildQuantifier(OpImport& op, PointwiseOp reduction) {
  AG_ASSIGN_OR_RETURN(Row row, loadRow(op, [](DType) { return DType::kBool; }));
  if (isZero(row.size)) return unsupported("an empty row is left to ATen");
  Operand bits = op.emitter().cast(row.elements, DType::kI32);
  Operand extremum = op.emitter().reduce(reduction, bits, row.numDims, row.keepsDims);
  return op.setResult(op.emitter().cast(extremum, DType::kBool));
}

struct Moments {
  Operand mean;
  Operand variance;
};

StatusOr<Moments> buildMoments(OpImport& op) {
  AG_ASSIGN_OR_RETURN(Row row, loadRow(op, computeType));
  if (!isFloat(row.elements.dtype)) return unsupported("the moments of integers are left to ATen");
  double correction = 1;
  if (!op.isNone("correction")) {
    AG_ASSIGN_OR_RETURN(correction, op.number("correction"));
  }
  if (!row.size.isConstant() && correction != 0) return unsupported("a correction of a row of symbolic size");
  if (row.size.isConstant() && row.size.constant() <= correction) return unsupported("no degrees of freedom");
  DType compute = row.elements.dtype;
  Emitter& emitter = op.emitter();
  auto divide = [&](const Operand& sum, double less) {
    Operand count = less == 0 ? emitter.symbol(row.size, compute)
                              : emitter.number(static_cast<double>(row.size.constant()) - less, compute);
    return emitter.apply(PointwiseOp::kDiv, {sum, count});
  };
  Operand sum = emitter.reduce(PointwiseOp::kReduceSum, row.elements, row.numDims, /*keepDims=*/true);
  AG_ASSIGN_OR_RETURN(Operand mean, divide(sum, 0));
  AG_ASSIGN_OR_RETURN(Operand centred, emitter.apply(PointwiseOp::kSub, {row.elements, mean}));
  AG_ASSIGN_OR_RETURN(Operand squares, emitter.apply(PointwiseOp::kMul, {centred, centred}));
  Operand total = emitter.reduce(PointwiseOp::kReduceSum, squares, row.numDims, row.keepsDims);
  AG_ASSIGN_OR_RETURN(Operand variance, divide(total, correction));
  if (!row.keepsDims) {
    Operand flat = emitter.reduce(PointwiseOp::kReduceSum, row.elements, row.numDims, /*keepDims=*/false);
    AG_ASSIGN_OR_RETURN(mean, divide(flat, 0));
  }
  return Moments{mean, variance};
}

}  // namespace

Status buildSum(OpImport& op) {
  AG_ASSIGN_OR_RETURN(Row row, loadRow(op, computeType));
  if (row.elements.dtype == DType::kBool) return unsupported("a bool sum is left to ATen");
  return op.setResult(op.emitter().reduce(PointwiseOp::kReduceSum, row.elements, row.numDims, row.keepsDims));
}

Status buildMean(OpImport& op) {
  AG_ASSIGN_OR_RETURN(Row row, loadRow(op, computeType));
  if (!isFloat(row.elements.dtype)) return unsupported("the mean of integers is left to ATen");
  Operand sum = op.emitter().reduce(PointwiseOp::kReduceSum, row.elements, row.numDims, row.keepsDims);
  Operand count = op.emitter().symbol(row.size, row.elements.dtype);
  AG_ASSIGN_OR_RETURN(Operand mean, op.emitter().apply(PointwiseOp::kDiv, {sum, count}));
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
