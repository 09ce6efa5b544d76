// SPDX-License-Identifier: Apache-2.0
// Backend: a code-generation target. It turns clusters into a loaded KernelLibrary; graphs, plans and Programs are the
// same for all targets. A new target is a folder with these file names and one row in registry.cpp.
//
// Backends are stateless constants: any thread may use one at any time.
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "compiler/graph/cluster.h"
#include "compiler/options.h"
#include "runtime/base/device.h"
#include "runtime/base/status.h"
#include "runtime/executable.h"

namespace agspeed::backends {

struct Backend {
  std::string_view name;
  std::string_view description;
  /// False for a target whose kernels do not compute (null): its results are meaningless.
  bool computes = true;
  Device::Kind device = Device::Kind::kCpu;  ///< where its kernels run
  /// Requires: every cluster verifies. One kernel per cluster, in order. Adds the number of cached kernels to `stats`.
  /// Errors: kUnsupported naming the operation or dtype that the target lacks.
  StatusOr<std::shared_ptr<const runtime::KernelLibrary>> (*build)(const std::vector<compiler::Cluster>& clusters,
                                                                   const compiler::CompileOptions& options,
                                                                   runtime::CompileStats& stats);
};

/// All targets of this build.
std::span<const Backend> backends();
/// The target of that name, or the default one for `device` if the name is empty. Errors: kInvalidArgument listing the
/// known names, or for a target whose kernels run on another device.
StatusOr<const Backend*> findBackend(std::string_view name, const Device& device);

}  // namespace agspeed::backends
