// SPDX-License-Identifier: Apache-2.0
// Builds a loaded KernelLibrary from clusters: cluster -> MLIR -> LLVM -> object -> linked code in this process.
// The one header of compiler/kernel that other components include; it shows no MLIR.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "compiler/graph/cluster.h"
#include "compiler/kernel/object/host_target.h"  // IWYU pragma: export
#include "runtime/base/status.h"
#include "runtime/executable.h"

namespace agspeed::compiler {

struct KernelOptions {
  std::string cacheDir;  ///< content-addressed object cache; empty: no cache
  std::string dumpDir;   ///< when set, IR after each pass is written here
  std::vector<std::string> disabledPasses;
  bool verifyEachPass = true;
};

struct KernelBuildStats {
  int32_t numCompiled = 0;
  int32_t numCacheHits = 0;
};

/// One kernel per cluster, in order. Equal clusters share one compilation. See runtime/program.h (KernelCall) and
/// compiler/graph/cluster.h for the calling convention.
/// Errors: kUnsupported when a cluster has an operation or dtype the generator lacks (named), kInternal otherwise.
StatusOr<std::shared_ptr<const runtime::KernelLibrary>> buildKernels(const std::vector<Cluster>& clusters,
                                                                     const KernelOptions& options,
                                                                     KernelBuildStats* stats);

}  // namespace agspeed::compiler
