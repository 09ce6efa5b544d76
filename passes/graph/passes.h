// SPDX-License-Identifier: Apache-2.0
// The graph passes and plans: pure functions, each in a file of its own. passes/passes.def lists the passes in order.
// Thread-safety: all functions may be called concurrently.
#pragma once

#include "compiler/graph/graph.h"
#include "passes/graph/plans.h"
#include "runtime/base/status.h"

namespace agspeed::passes {

/// Drops nodes without effects whose results are never used.
compiler::Graph dce(const compiler::Graph& graph);

/// Replaces a pure node by an earlier equal one. It keeps a node whose results may share memory with an output, and a
/// node that reads or returns memory that is mutated.
compiler::Graph cse(const compiler::Graph& graph);

/// Replaces the backwards of slices and selections, and sums of them, by joins.
compiler::Graph joinSlices(const compiler::Graph& graph);

/// Replaces a copy of a joined tensor by a join that has the copy's strides, if nothing else reads the joined tensor.
compiler::Graph reorderJoins(const compiler::Graph& graph);

/// Computes images in channels-last layout as [N, ..., C], behind views.
compiler::Graph turnImages(const compiler::Graph& graph);

/// Groups element-wise operations and reductions into kernels. After: no pointwise or reduce node is left. Kernels read
/// through views by strides, so views that only kernels read are gone. A contradictory plan fails an AG_CHECK.
StatusOr<compiler::Graph> fusePointwise(const compiler::Graph& graph);

/// Decides which kernel results live in the arena of a call, and at which offset. Requires: fusePointwise() has run.
MemoryPlan planMemory(const compiler::Graph& graph);

/// Decides after which node each value is dropped. Inputs, outputs, values in the arena and their views are never
/// dropped.
ReleasePlan planReleases(const compiler::Graph& graph, const MemoryPlan& memory);

/// Decides after which nodes gradients are handed over, and which gradients. GradientStageOptions (compiler/options.h)
/// describes the arguments. Requires: the order of the nodes is final.
/// Errors: kInvalidArgument if `inputsInMemoryOf` names an input that the graph does not have.
StatusOr<GradientStagePlan> planGradientStages(const compiler::Graph& graph, int64_t stageBytes,
                                               const std::vector<std::vector<int32_t>>& inputsInMemoryOf);

}  // namespace agspeed::passes
