// SPDX-License-Identifier: Apache-2.0
// Builders of batch normalisation in training, for contiguous [N, C, ...] with planes (the dimensions after C) long
// enough for a vector. Statistics take one pass: every plane's mean and squared deviations from its own mean, then the
// planes of a channel are combined:
//   var * count = sum over planes (deviations + size * (plane mean - mean)^2)
// so no large numbers cancel. Normalising (and what follows it) is the second pass; the backward has two as well.
#include "compiler/import/expression.h"
#include "compiler/import/op_table.h"

namespace agspeed::compiler {
namespace {

constexpr int64_t kShortestPlane = 16;

class BatchNormBuilder {
 public:
  static StatusOr<BatchNormBuilder> make(OpImport& op) {
    if (!op.isTensor("x") || !op.flag("training")) return unsupported("the batch's own statistics are not asked for");
    const TensorType& type = op.typeOf("x");
    if (type.dtype != DType::kF32 && type.dtype != DType::kF64) return unsupported("statistics of other precision");
    if (type.rank() < 3 || !isContiguous(type)) return unsupported("the input is not contiguous [N, C, ...]");
    BatchNormBuilder builder(op, type);
    if (estimate(builder.planeSize_, op.emitter().graph().hints) < kShortestPlane) return unsupported("short planes");
    if (isOne(builder.count_)) return unsupported("one value per channel");
    builder.names_["planesize"] = op.emitter().symbol(builder.planeSize_, type.dtype);
    builder.names_["count"] = op.emitter().symbol(builder.count_, type.dtype);
    return builder;
  }

  const SymExpr& count() const { return count_; }
  DType dtype() const { return type_.dtype; }
  void set(const char* name, const Operand& value) { names_[name] = value; }
  void use(const char* name) { names_[name] = op_.emitter().use(op_.tensor(name)); }
  Operand operator[](const char* name) const { return names_.find(name)->second; }

  Status define(const char* name, std::string_view expression) {
    AG_ASSIGN_OR_RETURN(names_[name], emitExpression(expression, names_, type_.dtype, op_.emitter()));
    return {};
  }

  // name: [N, C], the sum of the expression over each plane.
  Status defineOverPlanes(const char* name, std::string_view expression) {
    AG_ASSIGN_OR_RETURN(Operand elements, emitExpression(expression, names_, type_.dtype, op_.emitter()));
    names_[name] = op_.emitter().reduce(PointwiseOp::kReduceSum, elements, type_.rank() - 2, /*keepDims=*/false);
    return {};
  }

  // name: [C], the sum of an [N, C] expression over the batch; in f64, as ATen's, since planes may cancel.
  Status defineOverBatch(const char* name, std::string_view expression) {
    AG_ASSIGN_OR_RETURN(Operand planes, emitExpression(expression, names_, type_.dtype, op_.emitter()));
    Operand sum = op_.emitter().sumRows(op_.emitter().convert(planes, DType::kF64), 1, 0);
    names_[name] = op_.emitter().convert(sum, type_.dtype);
    return {};
  }

  // `name` becomes `source`, [C] or [N, C], with a dimension of size 1 for each dimension of a plane.
  void spread(const char* name, const char* source) {
    names_[name] = op_.emitter().unsqueezeLast((*this)[source], type_.rank() - 2);
  }

 private:
  BatchNormBuilder(OpImport& op, const TensorType& type)
      : op_(op),
        type_(type),
        planeSize_(numElements(Dims(type.sizes.begin() + 2, type.sizes.end()))),
        count_(type.sizes[0] * planeSize_) {}

  OpImport& op_;
  TensorType type_;
  SymExpr planeSize_;
  SymExpr count_;  // elements of a channel
  std::map<std::string, Operand, std::less<>> names_;
};

bool isResultWanted(const OpImport& op, size_t index) {
  return op.node().type.items.at(index).kind == SpecType::Kind::kTensor;
}

Status defineStatistics(BatchNormBuilder& norm) {
  AG_RETURN_IF_ERROR(norm.defineOverPlanes("planesum", "x"));
  AG_RETURN_IF_ERROR(norm.define("planemean", "planesum / planesize"));
  norm.spread("planemeans", "planemean");
  AG_RETURN_IF_ERROR(norm.defineOverPlanes("deviations", "(x - planemeans) * (x - planemeans)"));
  AG_RETURN_IF_ERROR(norm.defineOverBatch("sum", "planesum"));
  AG_RETURN_IF_ERROR(norm.define("mean", "sum / count"));
  return norm.defineOverBatch("squares", "deviations + planesize * ((planemean - mean) * (planemean - mean))");
}

// new = momentum * statistic + (1 - momentum) * old, the variance with one degree of freedom less.
Status setRunning(OpImport& op, BatchNormBuilder& norm, double momentum) {
  Emitter& emitter = op.emitter();
  norm.set("momentum", emitter.number(momentum, norm.dtype()));
  norm.set("rest", emitter.number(1 - momentum, norm.dtype()));
  norm.set("freedom", emitter.symbol(norm.count() - 1, norm.dtype()));
  norm.use("running_mean");
  norm.use("running_var");
  AG_RETURN_IF_ERROR(norm.define("newmean", "momentum * mean + rest * running_mean"));
  AG_RETURN_IF_ERROR(norm.define("newvar", "momentum * (squares / freedom) + rest * running_var"));
  AG_RETURN_IF_ERROR(op.setResult(norm["newmean"], 3));
  return op.setResult(norm["newvar"], 4);
}

}  // namespace

Status buildBatchNorm(OpImport& op) {
  for (const char* parameter : {"weight", "bias", "running_mean", "running_var"}) {
    if (!op.isTensor(parameter)) return unsupported("batch norm without " + std::string(parameter));
    if (op.typeOf(parameter).dtype != op.typeOf("x").dtype) return unsupported("parameters of another precision");
  }
  AG_ASSIGN_OR_RETURN(BatchNormBuilder norm, BatchNormBuilder::make(op));
  AG_ASSIGN_OR_RETURN(double momentum, op.number("momentum"));
  AG_ASSIGN_OR_RETURN(double eps, op.number("eps"));
  norm.set("eps", op.emitter().number(eps, norm.dtype()));
  for (const char* parameter : {"x", "weight", "bias"}) norm.use(parameter);
  AG_RETURN_IF_ERROR(defineStatistics(norm));
  AG_RETURN_IF_ERROR(norm.define("rstd", "rsqrt(squares / count + eps)"));
  AG_RETURN_IF_ERROR(norm.define("scale", "rstd * weight"));
  norm.spread("means", "mean");
  norm.spread("scales", "scale");
  norm.spread("biases", "bias");
  AG_RETURN_IF_ERROR(norm.define("y", "(x - means) * scales + biases"));
  AG_RETURN_IF_ERROR(op.setResult(norm["y"], 0));
  AG_RETURN_IF_ERROR(op.setResult(norm["mean"], 1));
  AG_RETURN_IF_ERROR(op.setResult(norm["rstd"], 2));
  return setRunning(op, norm, momentum);
}

// With d = x - mean:  dx = scale * (grad - sum(grad) / count - d * rstd^2 * sum(grad * d) / count).
Status buildBatchNormBackward(OpImport& op) {
  for (const char* parameter : {"grad", "weight", "mean", "rstd"}) {
    if (!op.isTensor(parameter)) return unsupported("batch norm without " + std::string(parameter));
    if (op.typeOf(parameter).dtype != op.typeOf("x").dtype) return unsupported("parameters of another precision");
  }
  AG_ASSIGN_OR_RETURN(BatchNormBuilder norm, BatchNormBuilder::make(op));
  for (const char* parameter : {"grad", "x", "weight", "mean", "rstd"}) norm.use(parameter);
  norm.spread("means", "mean");
  AG_RETURN_IF_ERROR(norm.defineOverPlanes("planegrad", "grad"));
  AG_RETURN_IF_ERROR(norm.defineOverPlanes("planedot", "grad * (x - means)"));
  AG_RETURN_IF_ERROR(norm.defineOverBatch("sumgrad", "planegrad"));
  AG_RETURN_IF_ERROR(norm.defineOverBatch("dot", "planedot"));
  if (isResultWanted(op, 0)) {
    AG_RETURN_IF_ERROR(norm.define("scale", "rstd * weight"));
    AG_RETURN_IF_ERROR(norm.define("shift", "sumgrad / count"));
    AG_RETURN_IF_ERROR(norm.define("slope", "rstd * rstd * dot / count"));
    norm.spread("scales", "scale");
    norm.spread("shifts", "shift");
    norm.spread("slopes", "slope");
    AG_RETURN_IF_ERROR(norm.define("dx", "(grad - shifts - (x - means) * slopes) * scales"));
    AG_RETURN_IF_ERROR(op.setResult(norm["dx"], 0));
  }
  if (isResultWanted(op, 1)) {
    AG_RETURN_IF_ERROR(norm.define("dweight", "dot * rstd"));
    AG_RETURN_IF_ERROR(op.setResult(norm["dweight"], 1));
  }
  return isResultWanted(op, 2) ? op.setResult(norm["sumgrad"], 2) : Status();
}

}  // namespace agspeed::compiler
