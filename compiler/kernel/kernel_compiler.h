// SPDX-License-Identifier: Apache-2.0
// compileKernel(): one Cluster -> object file bytes. This is the expensive part of buildKernels().
#pragma once

#include <string>

#include "compiler/graph/cluster.h"
#include "compiler/options.h"
#include "runtime/base/status.h"

namespace agspeed::compiler {

/// Returns an object file with the kernel under the name `symbol`. Each call has its own MLIRContext: thread-safe.
/// Errors: see buildKernels().
StatusOr<std::string> compileKernel(const Cluster& cluster, const std::string& symbol, const CompileOptions& options);

}  // namespace agspeed::compiler
