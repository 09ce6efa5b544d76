// SPDX-License-Identifier: Apache-2.0
// A kernel's code for one target, from the kernel cache or newly compiled. Every backend that emits kernels uses it.
#pragma once

#include <functional>
#include <string>

#include "compiler/graph/cluster.h"
#include "compiler/options.h"
#include "runtime/base/status.h"
#include "runtime/executable.h"

namespace agspeed::compiler {

/// Compiles a kernel under its name (Cluster::name()), and returns its code as bytes.
using KernelCompiler = std::function<StatusOr<std::string>(const std::string& symbol)>;

/// Returns the cluster's code for `target`, and stores code that `compile` has made in the cache. If there is a dump
/// folder, it does not look into the cache.
///
/// target: says for which machine the code is, such as "nvptx sm_90".
/// generatorVersion: raise it if the code of some cluster changes, so that code of other versions is not found.
StatusOr<std::string> loadOrCompile(const Cluster& cluster, const std::string& target, int generatorVersion,
                                    const CompileOptions& options, runtime::CompileStats& stats,
                                    const KernelCompiler& compile);

}  // namespace agspeed::compiler
