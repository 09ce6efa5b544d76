// SPDX-License-Identifier: Apache-2.0
// Interprets kernels of window operators (compiler/graph/window.h), one element at a time, in double.
#pragma once

#include <cstdint>

#include "compiler/graph/cluster.h"

namespace agspeed::backends::reference {

/// Runs units [begin, end) of a launch with the tables of runtime/program.h. Requires: cluster.window.
void runWindow(const compiler::Cluster& cluster, void* const* pointers, const int64_t* integers, int64_t begin,
               int64_t end);

}  // namespace agspeed::backends::reference
