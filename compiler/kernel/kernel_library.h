// SPDX-License-Identifier: Apache-2.0
// Builds a loaded KernelLibrary from clusters: cluster -> MLIR -> LLVM -> object -> linked code in this process.
// Other components include only this header and kernel_code.h of compiler/kernel; they do not use MLIR.
#pragma once

#include <memory>
#include <vector>

#include "compiler/graph/cluster.h"
#include "compiler/options.h"
#include "runtime/base/status.h"
#include "runtime/executable.h"

namespace agspeed::compiler {

/// One kernel per cluster, in order. Equal clusters share one compilation. See runtime/program.h (KernelCall) and
/// compiler/graph/cluster.h for the calling convention. Adds the number of objects from the cache to `stats`. Errors:
/// kUnsupported if a cluster has an operation or dtype that the generator lacks (named), kInternal otherwise.
StatusOr<std::shared_ptr<const runtime::KernelLibrary>> buildKernels(const std::vector<Cluster>& clusters,
                                                                     const CompileOptions& options,
                                                                     runtime::CompileStats& stats);

}  // namespace agspeed::compiler
