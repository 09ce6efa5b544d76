// SPDX-License-Identifier: Apache-2.0
// A Backend whose kernels are those of backends/nvptx, run on the host by the SIMT runner: for the conformance suite.
#pragma once

#include "backends/backend.h"

namespace agspeed::simt {

StatusOr<std::shared_ptr<const runtime::KernelLibrary>> build(const std::vector<compiler::Cluster>& clusters,
                                                              const compiler::CompileOptions& options,
                                                              runtime::CompileStats& stats);

inline constexpr backends::Backend kBackend = {"simt", "GPU kernels on the host", /*computes=*/true, Device::Kind::kCpu,
                                               build};

}  // namespace agspeed::simt
