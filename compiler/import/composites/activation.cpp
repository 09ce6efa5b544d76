// SPDX-License-Identifier: Apache-2.0
// Builders of activations whose formula depends on an argument, or that have several results.
#include <limits>

#include "compiler/import/expression.h"
#include "compiler/import/op_table.h"

namespace agspeed::compiler {
namespace {

// A builder's named intermediate values. Each define() adds one that later expressions may use.
class Formula {
 public:
  static StatusOr<Formula> make(OpImport& op, std::initializer_list<const char*> parameters) {
    AG_ASSIGN_OR_RETURN(TensorType type, op.resultType());
    if (!isFloat(type.dtype)) return unsupported("the result is not a float");
    Formula formula(op, computeType(type.dtype));
    for (const char* parameter : parameters) {
      AG_ASSIGN_OR_RETURN(formula.names_[parameter], op.operand(parameter, type.dtype, formula.compute_));
    }
    return formula;
  }

  DType compute() const { return compute_; }
  void number(const char* name, double value) { names_[name] = op_->emitter().number(value, compute_); }

  Status define(const char* name, std::string_view expression) {
    AG_ASSIGN_OR_RETURN(names_[name], emitExpression(expression, names_, compute_, op_->emitter()));
    return {};
  }

  Status result(std::string_view expression, size_t index = 0) {
    AG_ASSIGN_OR_RETURN(Operand value, emitExpression(expression, names_, compute_, op_->emitter()));
    return op_->setResult(value, index);
  }

 private:
  Formula(OpImport& op, DType compute) : op_(&op), compute_(compute) {}

  OpImport* op_;
  DType compute_;
  NamedOperands names_;
};

constexpr double kSqrt2 = 1.41421356237309504880;
constexpr double kInvSqrt2 = 0.70710678118654752440;
constexpr double kTwoOverSqrtPi = 1.12837916709551257390;
constexpr double kGeluCubic = 0.044715;

}  // namespace

Status buildGelu(OpImport& op) {
  AG_ASSIGN_OR_RETURN(Formula formula, Formula::make(op, {"x"}));
  if (op.text("approximate") != "tanh") {
    formula.number("alpha", kInvSqrt2);
    return formula.result("x * 0.5 * (1 + erf(x * alpha))");
  }
  formula.number("beta", kSqrt2 * kTwoOverSqrtPi * 0.5);
  formula.number("kappa", kGeluCubic);
  return formula.result("0.5 * x * (1 + tanh(beta * (x + kappa * (x * x * x))))");
}

Status buildGeluBackward(OpImport& op) {
  AG_ASSIGN_OR_RETURN(Formula formula, Formula::make(op, {"grad", "x"}));
  if (op.text("approximate") != "tanh") {
    formula.number("alpha", kInvSqrt2);
    formula.number("beta", kTwoOverSqrtPi * kInvSqrt2 * 0.5);
    AG_RETURN_IF_ERROR(formula.define("cdf", "0.5 * (1 + erf(x * alpha))"));
    AG_RETURN_IF_ERROR(formula.define("pdf", "beta * exp(x * x * -0.5)"));
    return formula.result("grad * (cdf + x * pdf)");
  }
  formula.number("beta", kSqrt2 * kTwoOverSqrtPi * 0.5);
  formula.number("kappa", kGeluCubic);
  AG_RETURN_IF_ERROR(formula.define("t", "tanh(beta * (x + kappa * (x * x * x)))"));
  AG_RETURN_IF_ERROR(formula.define("left", "0.5 * (1 + t)"));
  AG_RETURN_IF_ERROR(formula.define("right", "0.5 * x * (1 - t * t) * (beta * (1 + 3 * kappa * (x * x)))"));
  return formula.result("grad * (left + right)");
}

// Written with comparisons so that the gradient of NaN is NaN.
Status buildEluBackward(OpImport& op) {
  AG_ASSIGN_OR_RETURN(Formula formula, Formula::make(op, {"grad", "x", "alpha", "scale", "input_scale"}));
  return formula.result(
      op.flag("is_result") ? "where(x > 0, grad * scale, grad * input_scale * (x + alpha * scale))"
                           : "where(x > 0, grad * scale, grad * input_scale * (alpha * scale) * exp(x * input_scale))");
}

// Results: the value, and a buffer that has the shape of x on the CPU and that only other devices read.
Status buildLogSigmoidForward(OpImport& op) {
  AG_ASSIGN_OR_RETURN(Formula formula, Formula::make(op, {"x"}));
  AG_RETURN_IF_ERROR(formula.define("z", "exp(-abs(x))"));
  AG_RETURN_IF_ERROR(formula.result("minimum(x, 0) - log1p(z)", 0));
  AG_ASSIGN_OR_RETURN(TensorType buffer, op.resultType(1));
  return sameDims(buffer.sizes, op.typeOf("x").sizes) ? formula.result("z", 1) : unsupported("an empty buffer");
}

Status buildLogit(OpImport& op) {
  AG_ASSIGN_OR_RETURN(Formula formula, Formula::make(op, {"x"}));
  if (op.isNone("eps")) return formula.result("log(x / (1 - x))");
  AG_ASSIGN_OR_RETURN(double eps, op.number("eps"));
  formula.number("low", eps);
  formula.number("high", 1 - eps);
  AG_RETURN_IF_ERROR(formula.define("z", "minimum(maximum(x, low), high)"));
  return formula.result("log(z / (1 - z))");
}

Status buildNanToNum(OpImport& op) {
  AG_ASSIGN_OR_RETURN(Formula formula, Formula::make(op, {"x"}));
  AG_ASSIGN_OR_RETURN(TensorType type, op.resultType());
  double largest = type.dtype == DType::kF64   ? std::numeric_limits<double>::max()
                   : type.dtype == DType::kF16 ? 65504.0
                   : type.dtype == DType::kF32 ? double(std::numeric_limits<float>::max())
                                               : 0x1.fep127;
  AG_ASSIGN_OR_RETURN(double nan, op.number("nan"));
  formula.number("fornan", nan);
  auto bound = [&](const char* parameter, double fallback) {
    return op.isNone(parameter) ? StatusOr<double>(fallback) : op.number(parameter);
  };
  AG_ASSIGN_OR_RETURN(double high, bound("posinf", largest));
  AG_ASSIGN_OR_RETURN(double low, bound("neginf", -largest));
  formula.number("high", high);
  formula.number("low", low);
  formula.number("top", std::numeric_limits<double>::infinity());
  return formula.result("where(isnan(x), fornan, where(x == top, high, where(x == -top, low, x)))");
}

Status buildPreluBackward(OpImport& op) {
  AG_ASSIGN_OR_RETURN(Formula formula, Formula::make(op, {"grad", "x", "weight"}));
  AG_RETURN_IF_ERROR(formula.result("where(x > 0, grad, weight * grad)", 0));
  return formula.result("where(x > 0, 0, x * grad)", 1);
}

}  // namespace agspeed::compiler
