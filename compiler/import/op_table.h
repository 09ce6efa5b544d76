// SPDX-License-Identifier: Apache-2.0
// The import table: one row per ATen overload that becomes native nodes. All other overloads are imported as external
// calls.
#pragma once

#include <span>
#include <string_view>

#include "compiler/import/op_import.h"

namespace agspeed::compiler {

/// The dtype in which a row's expression computes; see op_table.def.
enum class ComputeIn : uint8_t { kResult, kFloat, kInputs };

struct OpRow {
  std::string_view target;
  ComputeIn computeIn = ComputeIn::kResult;
  std::string_view parameters;
  std::string_view expression;              ///< empty for rows with a builder
  Status (*build)(OpImport& op) = nullptr;  ///< emits nodes and sets results; kUnsupported: import as a call instead
};

std::span<const OpRow> opTable();
/// Nullptr when the operator has no row.
const OpRow* findOp(std::string_view target);
/// Emits the row's nodes. Errors: kUnsupported: import as a call instead.
Status buildOp(const OpRow& row, OpImport& op);

// The builders that rows name, by theme in composites/; each file describes what it emits.
#define AG_EXPRESSION(target, computeIn, parameters, expression)
#define AG_BUILDER(target, parameters, builder) Status builder(OpImport& op);
#include "compiler/import/op_table.def"
#undef AG_BUILDER
#undef AG_EXPRESSION

}  // namespace agspeed::compiler
