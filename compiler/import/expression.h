// SPDX-License-Identifier: Apache-2.0
// The small language of op_table.def: "where(x > 0, x, x * slope)" becomes graph nodes.
//
//   expression: sum [(< | <= | > | >= | == | !=) sum]      sum: product {(+ | -) product}
//   product: unary {(* | /) unary}                         unary: - unary | number | name | name(expression, ...)
//
// Names are the operator's parameters; functions are PointwiseOps by name, and bool(x).
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "compiler/import/emitter.h"

namespace agspeed::compiler {

/// The values of the names in an expression.
using NamedOperands = std::map<std::string, Operand, std::less<>>;

/// Emits the expression. Numbers get `dtype`.
/// Errors: kUnsupported if an operation does not exist for the given dtypes or a name has no value (an argument that is
/// None); kInternal for a malformed expression.
StatusOr<Operand> emitExpression(std::string_view expression, const NamedOperands& names, DType dtype,
                                 Emitter& emitter);

}  // namespace agspeed::compiler
