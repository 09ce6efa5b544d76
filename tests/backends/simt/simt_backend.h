// SPDX-License-Identifier: Apache-2.0
// A Backend for the conformance suite: it has the kernels of backends/nvptx and runs them on the host by the SIMT
// runner.
#pragma once

#include "backends/backend.h"

namespace agspeed::simt {

StatusOr<std::shared_ptr<const runtime::KernelLibrary>> build(const std::vector<compiler::Cluster>& clusters,
                                                              const compiler::CompileOptions& options,
                                                              runtime::CompileStats& stats);

inline constexpr backends::Backend kBackend = {"simt", "GPU kernels on the host", /*computes=*/true, Device::Kind::kCpu,
                                               build};

}  // namespace agspeed::simt
