// SPDX-License-Identifier: Apache-2.0
// Compiles a cluster's GPU kernels for the host. It is the implementation below simt_runner.h; mutation tests use it
// directly, to change the LLVM IR first.
#pragma once

#include <functional>

#include "compiler/graph/cluster.h"
#include "tests/backends/simt/simt_runner.h"

namespace llvm {
class Module;
}

namespace agspeed::simt {

using Mutation = std::function<void(llvm::Module&)>;

/// Errors: the same as emitDeviceModule().
StatusOr<std::unique_ptr<Module>> compileForHost(const compiler::Cluster& cluster, const std::string& symbol,
                                                 const Mutation& mutate = nullptr);

}  // namespace agspeed::simt
