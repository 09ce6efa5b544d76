// SPDX-License-Identifier: Apache-2.0
// buildKernels(): clusters -> PTX -> kernels loaded on one GPU, as a KernelLibrary that queues launches on streams.
//
// NVIDIA's driver compiles the PTX to machine code and keeps it; the kernel cache keeps the PTX, by capability. No CUDA
// header is used. Thread-safe.
#pragma once

#include <memory>
#include <vector>

#include "compiler/graph/cluster.h"
#include "compiler/options.h"
#include "runtime/base/status.h"
#include "runtime/executable.h"

namespace agspeed::backends::nvptx {

/// One kernel per cluster, in order, for options.device, whose driver is opened first. Adds the number of cached
/// kernels to `stats`. A launch takes device pointers and does not wait; enqueue() returns errors of the driver.
/// Errors: kUnsupported for a cluster without GPU code (the operation named), a kernel that would spill registers, a
/// build without PTX, or a driver that rejects it; kUnavailable without driver or GPU.
StatusOr<std::shared_ptr<const runtime::KernelLibrary>> buildKernels(const std::vector<compiler::Cluster>& clusters,
                                                                     const compiler::CompileOptions& options,
                                                                     runtime::CompileStats& stats);

}  // namespace agspeed::backends::nvptx
