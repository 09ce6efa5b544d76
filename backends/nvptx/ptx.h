// SPDX-License-Identifier: Apache-2.0
// emitPtx(): Cluster -> PTX text, through LLVM's NVPTX target.
#pragma once

#include <string>

#include "compiler/graph/cluster.h"
#include "compiler/options.h"
#include "runtime/base/status.h"

namespace agspeed::backends::nvptx {

/// A GPU's compute capability: 8.0 is {8, 0}.
struct Capability {
  int major = 8;
  int minor = 0;
};

/// Whether this build's LLVM has the NVPTX target; otherwise emitPtx() fails with the reason.
bool hasPtxTarget();

/// PTX with a function per entry of the cluster's plan (kernel_plan.h), named by entryName(). It begins with the
/// cluster as comment lines. Each floating-point operation is rounded: nothing is contracted, flushed or approximated.
/// Requires: cluster.verify(). Thread-safe.
/// Errors: kUnsupported for a shape, operation or dtype without GPU code (named), for a capability below 7.5, and if
/// LLVM has no NVPTX target.
StatusOr<std::string> emitPtx(const compiler::Cluster& cluster, const std::string& symbol, Capability capability,
                              const compiler::CompileOptions& options);

/// The cluster in the comment lines at the beginning of a PTX text. Errors: kDataLoss if there is none.
StatusOr<compiler::Cluster> clusterOfPtx(std::string_view ptx);

}  // namespace agspeed::backends::nvptx
