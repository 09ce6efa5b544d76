// SPDX-License-Identifier: Apache-2.0
// importGraphSpec: GraphSpec JSON (ATen level) in, Graph out. The only header of compiler/import for other components.
#pragma once

#include <string_view>

#include "compiler/graph/graph.h"
#include "runtime/base/status.h"

namespace agspeed::compiler {

/// Operators with a row in op_table.def become native nodes; every other one becomes a call. Integer arithmetic on
/// sizes becomes SymExprs. Thread-safety: may be called concurrently. Errors: kInvalidArgument for a malformed spec,
/// kUnsupported for a graph that the native path cannot hold (complex or non-CPU tensors in kernels never cause it:
/// those become calls).
StatusOr<Graph> importGraphSpec(std::string_view json);

}  // namespace agspeed::compiler
