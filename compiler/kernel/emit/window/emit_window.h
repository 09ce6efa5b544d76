// SPDX-License-Identifier: Apache-2.0
// emitWindow(): the body of a window kernel. For each block of channels of each image, it copies the rows that some
// results need to a tile, computes the results of a row after the other, and copies them to the output.
// compiler/graph/window_plan.h explains bands, groups, phases and taps.
#pragma once

#include "compiler/graph/cluster.h"
#include "passes/kernel/value_builder.h"

namespace agspeed::compiler {

/// Emits the kernel at the insertion point, the start of its function with the arguments of kernel_abi.md. Requires:
/// cluster.window; the window is not resampling and not a gradient of filters.
void emitWindow(passes::ValueBuilder& b, const Cluster& cluster, mlir::ValueRange arguments);

/// The same for gradients of filters: each block of channels goes through all images.
void emitWeightGradient(passes::ValueBuilder& b, const Cluster& cluster, mlir::ValueRange arguments);

/// The same for resampling and its gradients; compiler/graph/resample_plan.h explains bands and samples.
void emitResample(passes::ValueBuilder& b, const Cluster& cluster, mlir::ValueRange arguments);

}  // namespace agspeed::compiler
