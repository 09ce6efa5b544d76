// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/backend.h"

#include "compiler/kernel/kernel_library.h"

namespace agspeed::backends::cpu {

StatusOr<std::shared_ptr<const runtime::KernelLibrary>> build(const std::vector<compiler::Cluster>& clusters,
                                                              const BackendOptions& options, BuildStats& stats) {
  compiler::KernelOptions kernelOptions{.cacheDir = options.cacheDir,
                                        .dumpDir = options.dumpDir,
                                        .disabledPasses = options.disabledPasses,
                                        .verifyEachPass = options.verifyEachPass};
  compiler::KernelBuildStats kernelStats;
  StatusOr<std::shared_ptr<const runtime::KernelLibrary>> library =
      compiler::buildKernels(clusters, kernelOptions, &kernelStats);
  stats.numCacheHits = kernelStats.numCacheHits;
  return library;
}

std::string targetKey() { return compiler::hostTargetKey(); }

}  // namespace agspeed::backends::cpu
