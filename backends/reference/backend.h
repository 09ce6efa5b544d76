// SPDX-License-Identifier: Apache-2.0
// reference: a slow and obviously correct interpreter of clusters, the oracle for every other target. It computes one
// element at a time in double (or int64), rounded to each node's dtype.
#pragma once

#include "backends/backend.h"

namespace agspeed::backends::reference {

StatusOr<std::shared_ptr<const runtime::KernelLibrary>> build(const std::vector<compiler::Cluster>& clusters,
                                                              const compiler::CompileOptions& options,
                                                              runtime::CompileStats& stats);

inline constexpr Backend kBackend = {"reference", "an interpreter, the oracle", /*computes=*/true, Device::Kind::kCpu,
                                     build};

}  // namespace agspeed::backends::reference
