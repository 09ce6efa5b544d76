// SPDX-License-Identifier: Apache-2.0
// Builders of copies, dtype conversions and constant tensors. Their results are always new memory.
#include "compiler/import/op_table.h"

namespace agspeed::compiler {
namespace {

Status fill(OpImport& op, double value) {
  AG_ASSIGN_OR_RETURN(TensorType type, op.resultType());
  return op.setResult(op.emitter().number(value, type.dtype));
}

}  // namespace

Status buildCast(OpImport& op) {
  AG_ASSIGN_OR_RETURN(TensorType type, op.resultType());
  if (!op.isTensor("x")) return unsupported("the source is not a tensor");
  DType source = op.typeOf("x").dtype;
  if (source == DType::kC64 || source == DType::kC128) return unsupported("complex numbers are left to ATen");
  return op.setResult(op.emitter().use(op.tensor("x")));
}

Status buildFull(OpImport& op) {
  if (op.isTensor("value")) return unsupported("the value is a tensor");
  AG_ASSIGN_OR_RETURN(double value, op.number("value"));
  return fill(op, value);
}

Status buildZeros(OpImport& op) { return fill(op, 0); }

Status buildOnes(OpImport& op) { return fill(op, 1); }

}  // namespace agspeed::compiler
