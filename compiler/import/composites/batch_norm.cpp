// SPDX-License-Identifier: Apache-2.0
// Builders of batch normalisation in training, for contiguous [N, C, ...] whose planes (the dimensions after C) are
// long enough for a vector. Statistics take one pass over memory. It computes every plane's rounded mean, then the sums
// of the residuals from it and of their squares. These correct the plane's mean and give its squared deviations. Then
// the planes of a channel are combined, so that no large numbers cancel:
//   var * count = sum over planes (deviations + size * (plane mean - mean)^2)
// The second pass normalises (and computes what follows). The backward has two passes as well.
#include "compiler/import/expression.h"
#include "compiler/import/op_table.h"

namespace agspeed::compiler {
namespace {

constexpr int64_t kShortestPlane = 16;

// State of one batch-norm import: named operands. Statistics, [C] or [N, C], are f64 like ATen's, because planes may
// cancel; elements have the input's dtype.
class BatchNormBuilder {
 public:
  // Names "x" and the parameters.
  static StatusOr<BatchNormBuilder> make(OpImport& op, std::initializer_list<const char*> parameters) {
    if (!op.isTensor("x") || !op.flag("training")) return unsupported("the batch's own statistics are not asked for");
    const TensorType& type = op.typeOf("x");
    if (type.dtype != DType::kF32 && type.dtype != DType::kF64) return unsupported("statistics of other precision");
    if (type.rank() < 3 || !isContiguous(type)) return unsupported("the input is not contiguous [N, C, ...]");
    BatchNormBuilder builder(op, type);
    if (estimate(builder.planeSize_, op.emitter().graph().hints) < kShortestPlane) return unsupported("short planes");
    if (isOne(builder.count_)) return unsupported("one value per channel");
    builder.names_["x"] = op.emitter().use(op.tensor("x"));
    for (const char* parameter : parameters) AG_RETURN_IF_ERROR(builder.use(parameter));
    builder.names_["planesize"] = op.emitter().symbol(builder.planeSize_, DType::kF64);
    builder.names_["count"] = op.emitter().symbol(builder.count_, DType::kF64);
    return builder;
  }

  const SymExpr& count() const { return count_; }
  void set(const char* name, const Operand& value) { names_[name] = value; }
  Operand operator[](const char* name) const { return names_.find(name)->second; }

  Status define(const char* name, std::string_view expression) {
    AG_ASSIGN_OR_RETURN(names_[name], emitExpression(expression, names_, DType::kF64, op_.emitter()));
    return {};
  }

  // As define(), but rounded to the input's dtype.
  Status defineRounded(const char* name, std::string_view expression) {
    AG_RETURN_IF_ERROR(define(name, expression));
    names_[name] = op_.emitter().convert(op_.emitter().convert(names_[name], type_.dtype), DType::kF64);
    return {};
  }

  // Defines name as [N, C]: the sum of an expression of elements over each plane.
  Status defineOverPlanes(const char* name, std::string_view expression) {
    AG_ASSIGN_OR_RETURN(Operand elements, emitExpression(expression, names_, type_.dtype, op_.emitter()));
    Operand sum = op_.emitter().reduce(PointwiseOp::kReduceSum, elements, type_.rank() - 2, /*keepDims=*/false);
    names_[name] = op_.emitter().convert(sum, DType::kF64);
    return {};
  }

  // Defines name as [C]: the sum of an [N, C] expression over the batch.
  Status defineOverBatch(const char* name, std::string_view expression) {
    AG_ASSIGN_OR_RETURN(Operand planes, emitExpression(expression, names_, DType::kF64, op_.emitter()));
    names_[name] = op_.emitter().sumRows(planes, 1, 0);
    return {};
  }

  // Defines `name` as a [C] or [N, C] operand for use with elements: in their dtype, with a dimension of size 1 for
  // each dimension of a plane.
  void broadcast(const char* name, const Operand& source) {
    names_[name] = op_.emitter().unsqueezeLast(op_.emitter().convert(source, type_.dtype), type_.rank() - 2);
  }

  // Sets the index-th result to a statistic.
  Status result(const char* name, size_t index) { return op_.setResult(names_[name], index); }

  // Sets the first result to an expression of elements.
  Status resultElements(std::string_view expression) {
    AG_ASSIGN_OR_RETURN(Operand elements, emitExpression(expression, names_, type_.dtype, op_.emitter()));
    return op_.setResult(elements, 0);
  }

 private:
  BatchNormBuilder(OpImport& op, const TensorType& type)
      : op_(op),
        type_(type),
        planeSize_(numElements(Dims(type.sizes.begin() + 2, type.sizes.end()))),
        count_(type.sizes[0] * planeSize_) {}

  Status use(const char* parameter) {
    if (!op_.isTensor(parameter)) return unsupported("batch norm without " + std::string(parameter));
    Operand operand = op_.emitter().use(op_.tensor(parameter));
    if (operand.dtype != type_.dtype) return unsupported("parameters of another precision");
    bool isStatistic = op_.typeOf(parameter).rank() == 1;
    names_[parameter] = isStatistic ? op_.emitter().convert(operand, DType::kF64) : operand;
    return {};
  }

  OpImport& op_;
  TensorType type_;
  SymExpr planeSize_;
  SymExpr count_;  // elements of a channel
  NamedOperands names_;
};

Status defineStatistics(BatchNormBuilder& norm) {
  AG_RETURN_IF_ERROR(norm.defineOverPlanes("planesum", "x"));
  AG_RETURN_IF_ERROR(norm.defineRounded("shift", "planesum / planesize"));
  norm.broadcast("shifts", norm["shift"]);
  AG_RETURN_IF_ERROR(norm.defineOverPlanes("residual", "x - shifts"));
  AG_RETURN_IF_ERROR(norm.defineOverPlanes("squared", "(x - shifts) * (x - shifts)"));
  AG_RETURN_IF_ERROR(norm.define("planemean", "shift + residual / planesize"));
  AG_RETURN_IF_ERROR(norm.define("deviations", "maximum(squared - residual * residual / planesize, 0)"));
  AG_RETURN_IF_ERROR(norm.defineOverBatch("sum", "planesize * planemean"));
  AG_RETURN_IF_ERROR(norm.define("mean", "sum / count"));
  return norm.defineOverBatch("squares", "deviations + planesize * ((planemean - mean) * (planemean - mean))");
}

// new = momentum * statistic + (1 - momentum) * old. The variance is divided by count - 1.
Status setRunning(OpImport& op, BatchNormBuilder& norm) {
  AG_ASSIGN_OR_RETURN(double momentum, op.number("momentum"));
  norm.set("momentum", op.emitter().number(momentum, DType::kF64));
  norm.set("freedom", op.emitter().symbol(norm.count() - 1, DType::kF64));
  AG_RETURN_IF_ERROR(norm.define("newmean", "momentum * mean + (1 - momentum) * running_mean"));
  AG_RETURN_IF_ERROR(norm.define("newvar", "momentum * (squares / freedom) + (1 - momentum) * running_var"));
  AG_RETURN_IF_ERROR(norm.result("newmean", 3));
  return norm.result("newvar", 4);
}

}  // namespace

Status buildBatchNorm(OpImport& op) {
  AG_ASSIGN_OR_RETURN(BatchNormBuilder norm,
                      BatchNormBuilder::make(op, {"weight", "bias", "running_mean", "running_var"}));
  AG_ASSIGN_OR_RETURN(double eps, op.number("eps"));
  norm.set("eps", op.emitter().number(eps, DType::kF64));
  AG_RETURN_IF_ERROR(defineStatistics(norm));
  AG_RETURN_IF_ERROR(norm.define("rstd", "rsqrt(squares / count + eps)"));
  AG_RETURN_IF_ERROR(norm.define("scale", "rstd * weight"));
  norm.broadcast("means", norm["mean"]);
  norm.broadcast("scales", norm["scale"]);
  norm.broadcast("biases", op.emitter().use(op.tensor("bias")));
  AG_RETURN_IF_ERROR(norm.resultElements("(x - means) * scales + biases"));
  AG_RETURN_IF_ERROR(norm.result("mean", 1));
  AG_RETURN_IF_ERROR(norm.result("rstd", 2));
  return setRunning(op, norm);
}

// With d = x - mean:  dx = scale * (grad - sum(grad) / count - d * rstd^2 * sum(grad * d) / count).
Status buildBatchNormBackward(OpImport& op) {
  AG_ASSIGN_OR_RETURN(BatchNormBuilder norm, BatchNormBuilder::make(op, {"grad", "weight", "mean", "rstd"}));
  norm.broadcast("means", norm["mean"]);
  AG_RETURN_IF_ERROR(norm.defineOverPlanes("planegrad", "grad"));
  AG_RETURN_IF_ERROR(norm.defineOverPlanes("planedot", "grad * (x - means)"));
  AG_RETURN_IF_ERROR(norm.defineOverBatch("sumgrad", "planegrad"));
  AG_RETURN_IF_ERROR(norm.defineOverBatch("dot", "planedot"));
  if (op.isResultWanted(0)) {
    AG_RETURN_IF_ERROR(norm.define("scale", "rstd * weight"));
    AG_RETURN_IF_ERROR(norm.define("shift", "sumgrad / count"));
    AG_RETURN_IF_ERROR(norm.define("slope", "rstd * rstd * dot / count"));
    norm.broadcast("scales", norm["scale"]);
    norm.broadcast("shifts", norm["shift"]);
    norm.broadcast("slopes", norm["slope"]);
    AG_RETURN_IF_ERROR(norm.resultElements("(grad - shifts - (x - means) * slopes) * scales"));
  }
  if (op.isResultWanted(1)) {
    AG_RETURN_IF_ERROR(norm.define("dweight", "dot * rstd"));
    AG_RETURN_IF_ERROR(norm.result("dweight", 1));
  }
  return op.isResultWanted(2) ? norm.result("sumgrad", 2) : Status();
}

}  // namespace agspeed::compiler
