// SPDX-License-Identifier: Apache-2.0
// null: kernels that do nothing. The smallest backend. Copy it for a new target, or use it to measure the cost of
// everything except the kernels.
#pragma once

#include "backends/backend.h"

namespace agspeed::backends::null {

StatusOr<std::shared_ptr<const runtime::KernelLibrary>> build(const std::vector<compiler::Cluster>& clusters,
                                                              const compiler::CompileOptions& options,
                                                              runtime::CompileStats& stats);

inline constexpr Backend kBackend = {"null", "kernels that do nothing", /*computes=*/false, Device::Kind::kCpu, build};

}  // namespace agspeed::backends::null
