// SPDX-License-Identifier: Apache-2.0
// Builders of batch normalisation in training, for [N, C, ...] that is contiguous or in channels-last layout.
//
// If planes (the dimensions after C) are long enough for a vector, statistics take one pass over memory. It computes
// every plane's rounded mean, then the sums of the residuals from it and of their squares. These correct the plane's
// mean and give its squared deviations. Then the planes of a channel are combined, so that no large numbers cancel:
//   var * count = sum over planes (deviations + size * (plane mean - mean)^2)
// The second pass normalises (and computes what follows). The backward has two passes as well.
//
// Input of rank 2, or with short planes, is an [N, C * plane] matrix. Sums over its rows are vectorised over columns,
// and then the columns of a channel are added. Statistics take two passes: the rounded mean of every channel, then the
// sums of the residuals from it and of their squares. Channels-last input is a matrix [N * plane, C] of this kind. It
// is computed as [N, ..., C], and the pass turn-images gives its neighbours these sizes too.
//
// Elements of 16 bits compute in float32. Parameters and statistics are float32 or have the input's dtype.
#include <algorithm>
#include <numeric>

#include "compiler/import/expression.h"
#include "compiler/import/op_table.h"
#include "compiler/import/promotion.h"

namespace agspeed::compiler {
namespace {

enum class NormForm : uint8_t { kPlanes, kMatrix, kChannelsLast };

constexpr int64_t kShortestPlane = 16;
// The fewest and the most columns of a matrix whose rows are summed.
constexpr int64_t kFewestMatrixColumns = 16;
constexpr int64_t kMostMatrixColumns = 16384;

// State of one batch-norm import: named operands. Statistics, [C] or [N, C], are f64 like ATen's, because planes may
// cancel; elements have the input's compute type, and are [N, ..., C] in the form kChannelsLast.
class BatchNormBuilder {
 public:
  // Names "x" and the parameters.
  static StatusOr<BatchNormBuilder> make(OpImport& op, std::initializer_list<const char*> parameters) {
    if (!op.isTensor("x") || !op.flag("training")) return unsupported("the batch's own statistics are not asked for");
    const TensorType& type = op.typeOf("x");
    if (!isFloat(type.dtype)) return unsupported("the input is not of floats");
    if (type.rank() < 2 || (!isContiguous(type) && !isChannelsLast(type)))
      return unsupported("the input is neither contiguous nor channels-last [N, C, ...]");
    BatchNormBuilder builder(op, type);
    if (builder.sumsOverRows()) {
      const int64_t columns = estimate(builder.numColumns(), op.emitter().graph().hints);
      if (columns < kFewestMatrixColumns || columns > kMostMatrixColumns)
        return unsupported("too few or too many columns");
    }
    if (isOne(builder.count_)) return unsupported("one value per channel");
    AG_RETURN_IF_ERROR(builder.use("x"));
    for (const char* parameter : parameters) AG_RETURN_IF_ERROR(builder.use(parameter));
    builder.names_["planesize"] = builder.emitter_.symbol(builder.planeSize_, DType::kF64);
    builder.names_["count"] = builder.emitter_.symbol(builder.count_, DType::kF64);
    return builder;
  }

  // Names a tensor among the arguments.
  Status use(const char* parameter) {
    if (!op_.isTensor(parameter)) return unsupported("batch norm without " + std::string(parameter));
    const Operand operand = emitter_.use(op_.tensor(parameter));
    if (operand.dtype != type_.dtype && operand.dtype != compute_)
      return unsupported("parameters of another precision");
    const bool isStatistic = op_.typeOf(parameter).rank() == 1;
    names_[parameter] =
        isStatistic ? emitter_.convert(operand, DType::kF64) : emitter_.convert(ordered(operand), compute_);
    return {};
  }

  // Names the weight of the channels; without one, it is 1.
  Status useWeight() {
    if (op_.isTensor("weight")) return use("weight");
    set("weight", emitter_.number(1, DType::kF64));
    return {};
  }

  const SymExpr& count() const { return count_; }
  // Whether there are no planes that are long enough for sums of their own.
  bool sumsOverRows() const { return form_ != NormForm::kPlanes; }
  void set(const char* name, const Operand& value) { names_[name] = value; }
  Operand operator[](const char* name) const { return names_.find(name)->second; }

  Status define(const char* name, std::string_view expression) {
    AG_ASSIGN_OR_RETURN(names_[name], emitExpression(expression, names_, DType::kF64, emitter_));
    return {};
  }

  // As define(), but rounded to the compute type.
  Status defineRounded(const char* name, std::string_view expression) {
    AG_RETURN_IF_ERROR(define(name, expression));
    names_[name] = emitter_.convert(emitter_.convert(names_[name], compute_), DType::kF64);
    return {};
  }

  // Defines name as [N, C]: the sum of an expression of elements over each plane.
  Status defineOverPlanes(const char* name, std::string_view expression) {
    AG_ASSIGN_OR_RETURN(Operand elements, emitExpression(expression, names_, compute_, emitter_));
    Operand sum = emitter_.reduce(PointwiseOp::kReduceSum, elements, type_.rank() - 2, /*keepDims=*/false);
    names_[name] = emitter_.convert(sum, DType::kF64);
    return {};
  }

  // Defines name as [C]: the sum of an [N, C] expression over the batch.
  Status defineOverBatch(const char* name, std::string_view expression) {
    AG_ASSIGN_OR_RETURN(Operand planes, emitExpression(expression, names_, DType::kF64, emitter_));
    names_[name] = emitter_.sumRows(planes, 1, 0);
    return {};
  }

  // Defines name as [C]: the sum of an expression of elements, by sums over rows.
  Status defineOverRows(const char* name, std::string_view expression) {
    AG_ASSIGN_OR_RETURN(Operand sum, emitExpression(expression, names_, compute_, emitter_));
    const size_t numRowDims = form_ == NormForm::kMatrix ? 1 : type_.rank() - 1;
    sum = emitter_.convert(emitter_.sumRows(sum, numRowDims, 0), DType::kF64);
    if (numRowDims + 1 < type_.rank()) sum = emitter_.reduce(PointwiseOp::kReduceSum, sum, type_.rank() - 2, false);
    names_[name] = sum;
    return {};
  }

  // Defines name as [C]: the sum of an expression of elements over the batch and the planes.
  Status defineOverChannels(const char* name, std::string_view expression) {
    if (sumsOverRows()) return defineOverRows(name, expression);
    AG_RETURN_IF_ERROR(defineOverPlanes("planes", expression));
    return defineOverBatch(name, "planes");
  }

  // Defines `name` as a [C] or [N, C] operand for use with elements: in their compute type, with a dimension of size 1
  // for each dimension of a plane. In a matrix each element of a row has its own copy, because the row is one loop.
  void broadcast(const char* name, const Operand& source) {
    const size_t numPlaneDims = form_ == NormForm::kChannelsLast ? 0 : type_.rank() - 2;
    Operand operand = emitter_.unsqueezeLast(emitter_.convert(source, compute_), numPlaneDims);
    if (form_ == NormForm::kMatrix && numPlaneDims > 0) {
      const Dims row(type_.sizes.begin() + 1, type_.sizes.end());
      operand = emitter_.copy(operand, contiguousType(compute_, row));
    }
    names_[name] = operand;
  }

  // Sets the index-th result to a statistic.
  Status result(const char* name, size_t index) { return op_.setResult(names_[name], index); }

  // Sets the first result to an expression of elements.
  Status resultElements(std::string_view expression) {
    AG_ASSIGN_OR_RETURN(Operand elements, emitExpression(expression, names_, compute_, emitter_));
    if (form_ == NormForm::kChannelsLast) {
      AG_ASSIGN_OR_RETURN(const TensorType declared, op_.resultType(0));
      elements = channelsSecond(emitter_.convert(elements, declared.dtype), declared);
    }
    return op_.setResult(elements, 0);
  }

 private:
  BatchNormBuilder(OpImport& op, const TensorType& type)
      : op_(op),
        type_(type),
        compute_(computeType(type.dtype)),
        planeSize_(numElements(Dims(type.sizes.begin() + 2, type.sizes.end()))),
        count_(type.sizes[0] * planeSize_),
        form_(!isContiguous(type)                                                 ? NormForm::kChannelsLast
              : estimate(planeSize_, op.emitter().graph().hints) < kShortestPlane ? NormForm::kMatrix
                                                                                  : NormForm::kPlanes),
        emitter_(op.emitter().graph(), op.node().name, form_ == NormForm::kChannelsLast ? channelsToEnd(type) : type) {}

  // The number of columns of the matrix whose rows are summed.
  SymExpr numColumns() const { return form_ == NormForm::kMatrix ? type_.sizes[1] * planeSize_ : type_.sizes[1]; }

  // The operand in the form's order of dimensions.
  Operand ordered(const Operand& operand) { return form_ == NormForm::kChannelsLast ? channelsLast(operand) : operand; }

  // A channels-last view of images, or of a copy of them.
  Operand channelsLast(Operand images) {
    if (const TensorType type = emitter_.typeOf(images.value); !isChannelsLast(type))
      images = emitter_.copy(images, channelsLastType(type));
    std::vector<int32_t> dims(type_.rank());
    std::iota(dims.begin(), dims.end(), 0);
    std::rotate(dims.begin() + 1, dims.begin() + 2, dims.end());
    return permuted(images, dims, channelsToEnd(emitter_.typeOf(images.value)));
  }

  // A view of [N, ..., C] as [N, C, ...]. It has the declared type if this describes the same memory.
  Operand channelsSecond(const Operand& elements, const TensorType& declared) {
    std::vector<int32_t> dims(type_.rank());
    std::iota(dims.begin(), dims.end(), 0);
    std::rotate(dims.begin() + 1, dims.end() - 1, dims.end());
    const TensorType natural = channelsLastType(contiguousType(type_.dtype, type_.sizes));
    return permuted(elements, dims, sameLayout(natural, declared) ? declared : natural);
  }

  Operand permuted(const Operand& source, const std::vector<int32_t>& dims, const TensorType& type) {
    Argument list = Argument::ofList({});
    for (const int32_t dim : dims) list.items.push_back(Argument::ofInteger(dim));
    return emitter_.use(
        emitter_.view("aten.permute.default", source.value, {Argument::ofInput(0), std::move(list)}, {0, dims}, type));
  }

  OpImport& op_;
  TensorType type_;
  DType compute_;
  SymExpr planeSize_;
  SymExpr count_;  // elements of a channel
  NormForm form_;
  Emitter emitter_;
  NamedOperands names_;
};

Status defineStatisticsOverRows(BatchNormBuilder& norm) {
  AG_RETURN_IF_ERROR(norm.defineOverRows("total", "x"));
  AG_RETURN_IF_ERROR(norm.defineRounded("shift", "total / count"));
  norm.broadcast("shifts", norm["shift"]);
  AG_RETURN_IF_ERROR(norm.defineOverRows("residual", "x - shifts"));
  AG_RETURN_IF_ERROR(norm.defineOverRows("squared", "(x - shifts) * (x - shifts)"));
  AG_RETURN_IF_ERROR(norm.define("mean", "shift + residual / count"));
  return norm.define("squares", "maximum(squared - residual * residual / count, 0)");
}

Status defineStatistics(BatchNormBuilder& norm) {
  if (norm.sumsOverRows()) return defineStatisticsOverRows(norm);
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
  AG_RETURN_IF_ERROR(norm.use("running_mean"));
  AG_RETURN_IF_ERROR(norm.use("running_var"));
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
  AG_ASSIGN_OR_RETURN(BatchNormBuilder norm, BatchNormBuilder::make(op, {}));
  AG_RETURN_IF_ERROR(norm.useWeight());
  const bool hasBias = op.isTensor("bias");
  if (hasBias) AG_RETURN_IF_ERROR(norm.use("bias"));
  AG_ASSIGN_OR_RETURN(double eps, op.number("eps"));
  norm.set("eps", op.emitter().number(eps, DType::kF64));
  AG_RETURN_IF_ERROR(defineStatistics(norm));
  AG_RETURN_IF_ERROR(norm.define("rstd", "rsqrt(squares / count + eps)"));
  AG_RETURN_IF_ERROR(norm.define("scale", "rstd * weight"));
  norm.broadcast("means", norm["mean"]);
  norm.broadcast("scales", norm["scale"]);
  if (hasBias) norm.broadcast("biases", op.emitter().use(op.tensor("bias")));
  AG_RETURN_IF_ERROR(norm.resultElements(hasBias ? "(x - means) * scales + biases" : "(x - means) * scales"));
  AG_RETURN_IF_ERROR(norm.result("mean", 1));
  AG_RETURN_IF_ERROR(norm.result("rstd", 2));
  return op.isTensor("running_mean") ? setRunning(op, norm) : Status();
}

// With d = x - mean:  dx = scale * (grad - sum(grad) / count - d * rstd^2 * sum(grad * d) / count).
Status buildBatchNormBackward(OpImport& op) {
  AG_ASSIGN_OR_RETURN(BatchNormBuilder norm, BatchNormBuilder::make(op, {"grad", "mean", "rstd"}));
  AG_RETURN_IF_ERROR(norm.useWeight());
  norm.broadcast("means", norm["mean"]);
  AG_RETURN_IF_ERROR(norm.defineOverChannels("sumgrad", "grad"));
  AG_RETURN_IF_ERROR(norm.defineOverChannels("dot", "grad * (x - means)"));
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
