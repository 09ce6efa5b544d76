// SPDX-License-Identifier: Apache-2.0
// Backend: a code-generation target. It turns clusters into a loaded KernelLibrary; graphs, plans and Programs are the
// same for all targets. A new target is a folder with these file names and one row in registry.cpp.
//
// Backends are stateless constants: any thread may use one at any time.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/graph/cluster.h"
#include "runtime/base/status.h"
#include "runtime/executable.h"

namespace agspeed::backends {

struct BackendOptions {
  std::string cacheDir;  ///< object cache; empty: none
  std::string dumpDir;   ///< generated IR goes here; empty: nowhere
  std::vector<std::string> disabledPasses;
  bool verifyEachPass = true;
};

struct BuildStats {
  int32_t numCacheHits = 0;
};

struct Backend {
  std::string_view name;
  std::string_view description;
  /// False for a target whose kernels do not compute (null): its results mean nothing.
  bool computes = true;
  /// Requires: every cluster verifies. One kernel per cluster, in order.
  /// Errors: kUnsupported naming the operation or dtype that the target lacks.
  StatusOr<std::shared_ptr<const runtime::KernelLibrary>> (*build)(const std::vector<compiler::Cluster>& clusters,
                                                                   const BackendOptions& options, BuildStats& stats);
  /// Everything about this machine that changes the generated code; part of every cache key.
  std::string (*targetKey)();
};

/// All targets of this build.
std::span<const Backend> backends();
/// Errors: kInvalidArgument listing the known names.
StatusOr<const Backend*> findBackend(std::string_view name);

}  // namespace agspeed::backends
