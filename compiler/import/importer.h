// SPDX-License-Identifier: Apache-2.0
// importGraphSpec: GraphSpec JSON (ATen level) in, Graph out. The only header of compiler/import for other components.
#pragma once

#include <string_view>

#include "compiler/graph/graph.h"
#include "runtime/base/device.h"
#include "runtime/base/status.h"

namespace agspeed::compiler {

/// Operators with a row in op_table.def become native nodes; every other one becomes a call. Integer arithmetic on
/// sizes becomes SymExprs. `device` is where the graph works: what reads or makes tensors on the CPU in a graph for
/// another device becomes a call. Thread-safety: may be called concurrently. Errors: kInvalidArgument for a malformed
/// spec, kUnsupported for a graph that the native path cannot hold, as one with tensors on a third device (complex
/// tensors never cause it: what has them becomes a call).
StatusOr<Graph> importGraphSpec(std::string_view json, Device device = {});

}  // namespace agspeed::compiler
