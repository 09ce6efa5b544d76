// SPDX-License-Identifier: Apache-2.0
// Converts an ExternalArg's constants to the types of an operator's schema. Stateless, never throws.
#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include <vector>

#include "runtime/base/status.h"
#include "runtime/program.h"

namespace agspeed::runtime::aten {

/// The value of a scalar or scalar-list argument, e.g. SymExpr 4*s0 for "SymInt", "channels_last" for "MemoryFormat?".
/// A number where a tensor is expected becomes a zero-dimensional "wrapped number", as in Python.
/// Errors: kInvalidArgument naming the argument, its type and what was given.
StatusOr<c10::IValue> convertArgument(const ExternalArg& arg, const c10::Argument& schema,
                                      const std::vector<int64_t>& symbols);

}  // namespace agspeed::runtime::aten
