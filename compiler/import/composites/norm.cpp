// SPDX-License-Identifier: Apache-2.0
// Builders of layer normalisation. The backward is one pass: the kernel that computes the input's gradient also adds up
// the gradients of weight and bias, in blocks of rows.
#include <numeric>

#include "compiler/import/expression.h"
#include "compiler/import/op_table.h"
#include "compiler/import/trailing_dims.h"

namespace agspeed::compiler {
namespace {

// State of one layer-norm import: named operands in compute precision and the shape of a row.
class NormBuilder {
 public:
  static StatusOr<NormBuilder> make(OpImport& op, std::initializer_list<const char*> parameters) {
    if (!op.isTensor("x") || !isFloat(op.typeOf("x").dtype)) return unsupported("the input is not a float tensor");
    AG_ASSIGN_OR_RETURN(std::vector<int64_t> shape, op.integers("shape"));
    const TensorType type = op.typeOf("x");
    std::vector<int64_t> dims(shape.size());
    std::iota(dims.begin(), dims.end(), -static_cast<int64_t>(shape.size()));
    NormBuilder builder(op, computeType(type.dtype));
    const Graph& graph = op.emitter().graph();
    if (graph.device.isHost() && hasTransposedRows(type, dims.size(), graph.hints)) {
      builder.numDims_ = dims.size();
    } else {
      AG_ASSIGN_OR_RETURN(builder.numDims_, trailingDims(type, dims, {}));
    }
    if (op.isTensor("grad")) {
      const TensorType grad = op.typeOf("grad");
      if (!areUniform(grad.sizes, grad.strides, grad.rank() - builder.numDims_))
        return unsupported("the gradient's rows do not step through memory like one dimension");
    }
    builder.rowSize_ = rowSize(type, builder.numDims_);
    for (const char* parameter : parameters) {
      if (!op.isTensor(parameter)) continue;
      builder.names_[parameter] = op.emitter().cast(op.emitter().use(op.tensor(parameter)), builder.compute_);
    }
    return builder;
  }

  void number(const char* name, double value) { names_[name] = op_.emitter().number(value, compute_); }
  bool has(const char* name) const { return names_.contains(name); }
  const Operand& operator[](const char* name) const { return names_.find(name)->second; }

  Status define(const char* name, std::string_view expression) {
    AG_ASSIGN_OR_RETURN(names_[name], emitExpression(expression, names_, compute_, op_.emitter()));
    return {};
  }

  // Defines name as the mean of the expression over the row.
  Status defineMean(const char* name, std::string_view expression) {
    AG_ASSIGN_OR_RETURN(Operand elements, emitExpression(expression, names_, compute_, op_.emitter()));
    Operand sum = op_.emitter().reduce(PointwiseOp::kReduceSum, elements, numDims_, /*keepDims=*/true);
    Operand count = op_.emitter().symbol(rowSize_, compute_);
    AG_ASSIGN_OR_RETURN(names_[name], op_.emitter().apply(PointwiseOp::kDiv, {sum, count}));
    return {};
  }

  Status result(const char* name, size_t index) { return op_.setResult(names_[name], index); }

  // Sets a result to the sum over rows of a named value, converted to the result's dtype.
  Status sumOverRows(const char* name, size_t index) {
    size_t numRowDims = op_.emitter().typeOf(names_[name].value).rank() - numDims_;
    if (numRowDims == 0) return op_.setResult(names_[name], index);
    return op_.setResult(op_.emitter().sumRows(names_[name], numRowDims, 0), index);
  }

 private:
  NormBuilder(OpImport& op, DType compute) : op_(op), compute_(compute) {}

  OpImport& op_;
  DType compute_;
  NamedOperands names_;
  size_t numDims_ = 0;
  SymExpr rowSize_;
};

}  // namespace

// The mean of residuals corrects a first, rounded mean, so that a large mean costs no accuracy.
Status buildLayerNorm(OpImport& op) {
  AG_ASSIGN_OR_RETURN(NormBuilder norm, NormBuilder::make(op, {"x", "weight", "bias"}));
  AG_ASSIGN_OR_RETURN(double eps, op.number("eps"));
  norm.number("eps", eps);
  AG_RETURN_IF_ERROR(norm.defineMean("rough", "x"));
  AG_RETURN_IF_ERROR(norm.defineMean("residual", "x - rough"));
  AG_RETURN_IF_ERROR(norm.defineMean("squared", "(x - rough) * (x - rough)"));
  AG_RETURN_IF_ERROR(norm.define("mean", "rough + residual"));
  AG_RETURN_IF_ERROR(norm.define("variance", "maximum(squared - residual * residual, 0)"));
  AG_RETURN_IF_ERROR(norm.define("centred", "x - mean"));
  AG_RETURN_IF_ERROR(norm.define("rstd", "rsqrt(variance + eps)"));
  AG_RETURN_IF_ERROR(norm.define("y", "centred * rstd"));
  if (norm.has("weight")) AG_RETURN_IF_ERROR(norm.define("y", "y * weight"));
  if (norm.has("bias")) AG_RETURN_IF_ERROR(norm.define("y", "y + bias"));
  AG_RETURN_IF_ERROR(norm.result("y", 0));
  AG_RETURN_IF_ERROR(norm.result("mean", 1));
  return norm.result("rstd", 2);
}

// With xhat = (x - mean) * rstd and g = grad * weight:  dx = rstd * (g - mean(g) - xhat * mean(g * xhat)).
Status buildLayerNormBackward(OpImport& op) {
  AG_ASSIGN_OR_RETURN(NormBuilder norm, NormBuilder::make(op, {"grad", "x", "mean", "rstd", "weight"}));
  AG_RETURN_IF_ERROR(norm.define("xhat", "(x - mean) * rstd"));
  if (op.isResultWanted(0)) {
    AG_RETURN_IF_ERROR(norm.define("g", norm.has("weight") ? "grad * weight" : "grad"));
    AG_RETURN_IF_ERROR(norm.defineMean("meang", "g"));
    AG_RETURN_IF_ERROR(norm.defineMean("meangx", "g * xhat"));
    AG_RETURN_IF_ERROR(norm.define("dx", "rstd * (g - meang - xhat * meangx)"));
    AG_RETURN_IF_ERROR(norm.result("dx", 0));
  }
  if (op.isResultWanted(1)) {
    AG_RETURN_IF_ERROR(norm.define("dweight", "grad * xhat"));
    AG_RETURN_IF_ERROR(norm.sumOverRows("dweight", 1));
  }
  return op.isResultWanted(2) ? norm.sumOverRows("grad", 2) : Status();
}

}  // namespace agspeed::compiler
