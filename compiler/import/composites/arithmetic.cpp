// SPDX-License-Identifier: Apache-2.0
// Builders of arithmetic whose nodes depend on argument values: alpha, exponents, rounding modes, optional bounds.
#include <cmath>

#include "compiler/import/expression.h"
#include "compiler/import/op_table.h"

namespace agspeed::compiler {
namespace {

struct Operands {
  NamedOperands names;
  DType compute = DType::kF32;
};

// All given tensor and number arguments, converted as ATen does for a result of the node's dtype.
StatusOr<Operands> loadOperands(OpImport& op) {
  AG_ASSIGN_OR_RETURN(TensorType type, op.resultType());
  Operands operands;
  operands.compute = computeType(type.dtype);
  for (const std::string& parameter : op.parameters()) {
    if (op.isNone(parameter) || !op.text(parameter).empty()) continue;
    AG_ASSIGN_OR_RETURN(operands.names[parameter], op.operand(parameter, type.dtype, operands.compute));
  }
  return operands;
}

Status finish(OpImport& op, const Operands& operands, std::string_view expression) {
  AG_ASSIGN_OR_RETURN(Operand result, emitExpression(expression, operands.names, operands.compute, op.emitter()));
  return op.setResult(result);
}

// base + alpha * scaled. ATen's vectorised kernels use a fused multiply-add, so this does too.
Status buildScaledSum(OpImport& op, std::string_view base, std::string_view scaled, double sign) {
  AG_ASSIGN_OR_RETURN(Operands operands, loadOperands(op));
  Operand& alpha = operands.names["alpha"];
  if (!alpha.isNumber) return unsupported("alpha is not a constant");
  std::string a(base);
  std::string b(scaled);
  if (alpha.number == 1) return finish(op, operands, sign > 0 ? a + " + " + b : a + " - " + b);
  if (operands.compute == DType::kBool) return unsupported("alpha of a bool sum is left to ATen");
  alpha.number *= sign;
  return finish(op, operands,
                isFloat(operands.compute) ? "fma(" + b + ", alpha, " + a + ")" : a + " + " + b + " * alpha");
}

}  // namespace

Status buildAdd(OpImport& op) { return buildScaledSum(op, "a", "b", 1); }

Status buildSub(OpImport& op) { return buildScaledSum(op, "a", "b", -1); }

Status buildRsub(OpImport& op) { return buildScaledSum(op, "b", "a", -1); }

Status buildDivMode(OpImport& op) {
  AG_ASSIGN_OR_RETURN(TensorType type, op.resultType());
  if (!isFloat(type.dtype)) return unsupported("integer division is left to ATen");
  std::string mode = op.text("rounding_mode");
  // ATen rounds the quotient to the type first: 17.98 is 18 in bfloat16 then.
  const bool is16Bit = type.dtype == DType::kF16 || type.dtype == DType::kBF16;
  if (is16Bit && mode == "trunc") return unsupported("16-bit division that rounds is left to ATen");
  AG_ASSIGN_OR_RETURN(Operands operands, loadOperands(op));
  return finish(op, operands, mode == "floor" ? "floor_div(a, b)" : mode == "trunc" ? "trunc(a / b)" : "a / b");
}

Status buildClamp(OpImport& op) {
  AG_ASSIGN_OR_RETURN(Operands operands, loadOperands(op));
  bool hasMin = operands.names.contains("min");
  bool hasMax = operands.names.contains("max");
  if (hasMin && hasMax) return finish(op, operands, "minimum(maximum(x, min), max)");
  return finish(op, operands, hasMin ? "maximum(x, min)" : "minimum(x, max)");
}

Status buildPowScalar(OpImport& op) {
  AG_ASSIGN_OR_RETURN(Operands operands, loadOperands(op));
  const Operand& exponent = operands.names["b"];
  if (!exponent.isNumber) return finish(op, operands, "pow(a, b)");
  constexpr std::pair<double, std::string_view> kExponents[] = {{0.5, "sqrt(a)"},   {-0.5, "rsqrt(a)"}, {1, "a"},
                                                                {2, "a * a"},       {3, "a * a * a"},   {-1, "1 / a"},
                                                                {-2, "1 / (a * a)"}};
  for (const auto& [value, expression] : kExponents) {
    if (value == exponent.number) return finish(op, operands, expression);
  }
  return finish(op, operands, "pow(a, b)");
}

Status buildLerp(OpImport& op) {
  AG_ASSIGN_OR_RETURN(Operands operands, loadOperands(op));
  const Operand& weight = operands.names["weight"];
  constexpr std::string_view kNear = "start + weight * (end - start)";
  constexpr std::string_view kFar = "end - (end - start) * (1 - weight)";
  if (weight.isNumber) return finish(op, operands, std::abs(weight.number) < 0.5 ? kNear : kFar);
  return finish(op, operands, "where(abs(weight) < 0.5, " + std::string(kNear) + ", " + std::string(kFar) + ")");
}

}  // namespace agspeed::compiler
