// SPDX-License-Identifier: Apache-2.0
// importGraphSpec: GraphSpec JSON (ATen level) in, Graph out. The only header of compiler/import for other components.
#pragma once

#include <string_view>

#include "compiler/graph/graph.h"
#include "runtime/base/device.h"
#include "runtime/base/status.h"

namespace agspeed::compiler {

/// Operators with a row in op_table.def become native nodes; all others become calls. Integer arithmetic on sizes
/// becomes SymExprs. `device` is where the graph works. In a graph for another device than the CPU, operators that read
/// or make tensors on the CPU become calls. Thread-safety: may be called concurrently. Errors: kInvalidArgument for a
/// malformed spec, kUnsupported for a graph that the native path cannot represent, for example one with tensors on a
/// third device. Complex tensors never cause it: their operators become calls.
StatusOr<Graph> importGraphSpec(std::string_view json, Device device = {});

}  // namespace agspeed::compiler
