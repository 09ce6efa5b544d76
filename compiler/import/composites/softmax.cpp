// SPDX-License-Identifier: Apache-2.0
// Builders of softmax and log-softmax over the last dimension, forward and backward, with ATen's formulas.
#include <limits>

#include "compiler/import/expression.h"
#include "compiler/import/op_table.h"
#include "compiler/import/trailing_dims.h"

namespace agspeed::compiler {
namespace {

// The named rows in compute precision; each must be reducible over `dim`.
StatusOr<NamedOperands> loadRows(OpImport& op, std::vector<std::string> parameters) {
  AG_ASSIGN_OR_RETURN(std::vector<int64_t> dims, op.integers("dim"));
  NamedOperands rows;
  for (const std::string& parameter : parameters) {
    if (!op.isTensor(parameter)) return unsupported("an input is not a tensor");
    const TensorType type = op.typeOf(parameter);
    if (!isFloat(type.dtype)) return unsupported("the input is not a float");
    AG_RETURN_IF_ERROR(trailingDims(type, dims, {}).status());
    rows[parameter] = op.emitter().cast(op.emitter().use(op.tensor(parameter)), computeType(type.dtype));
  }
  return rows;
}

// Emits the expressions in order; a name that starts with "max" or "sum" is the reduction of its expression.
Status emitSteps(OpImport& op, NamedOperands names, std::initializer_list<std::pair<std::string, std::string>> steps) {
  DType compute = names.begin()->second.dtype;
  Operand last;
  for (const auto& [name, expression] : steps) {
    AG_ASSIGN_OR_RETURN(last, emitExpression(expression, names, compute, op.emitter()));
    if (name == "max") last = op.emitter().reduce(PointwiseOp::kReduceMax, last, 1, /*keepDims=*/true);
    if (name == "sum") last = op.emitter().reduce(PointwiseOp::kReduceSum, last, 1, /*keepDims=*/true);
    names[name] = last;
  }
  return op.setResult(last);
}

}  // namespace

Status buildSoftmax(OpImport& op) {
  AG_ASSIGN_OR_RETURN(auto rows, loadRows(op, {"x"}));
  return emitSteps(op, rows, {{"max", "x"}, {"e", "exp(x - max)"}, {"sum", "e"}, {"y", "e / sum"}});
}

// A row that is all -inf gives zeros.
Status buildSafeSoftmax(OpImport& op) {
  if (!op.isNone("dtype")) return unsupported("a softmax of another dtype");
  AG_ASSIGN_OR_RETURN(auto rows, loadRows(op, {"x"}));
  rows["lowest"] = op.emitter().number(-std::numeric_limits<double>::infinity(), rows["x"].dtype);
  return emitSteps(op, rows,
                   {{"max", "x"}, {"e", "exp(x - max)"}, {"sum", "e"}, {"y", "where(max == lowest, 0, e / sum)"}});
}

Status buildLogSoftmax(OpImport& op) {
  AG_ASSIGN_OR_RETURN(auto rows, loadRows(op, {"x"}));
  return emitSteps(op, rows, {{"max", "x"}, {"z", "x - max"}, {"sum", "exp(z)"}, {"y", "z - log(sum)"}});
}

Status buildSoftmaxBackward(OpImport& op) {
  AG_ASSIGN_OR_RETURN(auto rows, loadRows(op, {"grad", "y"}));
  return emitSteps(op, rows, {{"sum", "grad * y"}, {"dx", "(grad - sum) * y"}});
}

Status buildLogSoftmaxBackward(OpImport& op) {
  AG_ASSIGN_OR_RETURN(auto rows, loadRows(op, {"grad", "y"}));
  return emitSteps(op, rows, {{"sum", "grad"}, {"dx", "grad - exp(y) * sum"}});
}

}  // namespace agspeed::compiler
