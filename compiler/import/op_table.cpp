// SPDX-License-Identifier: Apache-2.0
#include "compiler/import/op_table.h"

#include <unordered_map>

#include "compiler/import/expression.h"

namespace agspeed::compiler {
namespace {

constexpr OpRow kOpTable[] = {
#define AG_EXPRESSION(target, computeIn, parameters, expression) \
  {target, ComputeIn::computeIn, parameters, expression, nullptr},
#define AG_BUILDER(target, parameters, builder) {target, ComputeIn::kResult, parameters, "", builder},
#include "compiler/import/op_table.def"
#undef AG_BUILDER
#undef AG_EXPRESSION
};

StatusOr<DType> commonTypeFor(ComputeIn computeIn, OpImport& op) {
  if (computeIn == ComputeIn::kInputs) return op.commonType();
  AG_ASSIGN_OR_RETURN(TensorType type, op.resultType());
  if (computeIn == ComputeIn::kFloat && !isFloat(type.dtype)) return unsupported("the result is not a float");
  return type.dtype;
}

}  // namespace

std::span<const OpRow> opTable() { return kOpTable; }

const OpRow* findOp(std::string_view target) {
  static const auto* const index = [] {
    auto* rows = new std::unordered_map<std::string_view, const OpRow*>();
    for (const OpRow& row : kOpTable) rows->emplace(row.target, &row);
    return rows;
  }();
  auto found = index->find(target);
  return found == index->end() ? nullptr : found->second;
}

Status buildOp(const OpRow& row, OpImport& op) {
  AG_RETURN_IF_ERROR(op.bind(row.parameters));
  if (row.build) return row.build(op);
  AG_ASSIGN_OR_RETURN(DType common, commonTypeFor(row.computeIn, op));
  DType compute = computeType(common);
  NamedOperands names;
  for (const std::string& parameter : op.parameters()) {
    if (op.isNone(parameter) || row.expression.find(parameter) == std::string_view::npos) continue;
    AG_ASSIGN_OR_RETURN(names[parameter], op.operand(parameter, common, compute));
  }
  AG_ASSIGN_OR_RETURN(Operand result, emitExpression(row.expression, names, compute, op.emitter()));
  return op.setResult(result);
}

}  // namespace agspeed::compiler
