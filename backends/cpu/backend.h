// SPDX-License-Identifier: Apache-2.0
// cpu: vectorised code for this machine, generated in process by compiler/kernel (MLIR).
#pragma once

#include "backends/backend.h"

namespace agspeed::backends::cpu {

StatusOr<std::shared_ptr<const runtime::KernelLibrary>> build(const std::vector<compiler::Cluster>& clusters,
                                                              const BackendOptions& options, BuildStats& stats);
std::string targetKey();

inline constexpr Backend kBackend = {"cpu", "vectorised code for this machine", /*computes=*/true, build, targetKey};

}  // namespace agspeed::backends::cpu
