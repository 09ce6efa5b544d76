// SPDX-License-Identifier: Apache-2.0
// The graph passes: pure functions, one idea and one file each. passes/passes.def lists them in order.
// Thread-safety: all functions may be called concurrently.
#pragma once

#include "compiler/graph/graph.h"
#include "passes/graph/plans.h"
#include "runtime/base/status.h"

namespace agspeed::passes {

/// Drops nodes without effects whose results nobody uses.
compiler::Graph dce(const compiler::Graph& graph);

/// Replaces a pure node by an earlier equal one. Never when that would make two outputs share memory, or when memory
/// that the node reads or yields is mutated.
compiler::Graph cse(const compiler::Graph& graph);

/// Groups element-wise operations and the trailing reductions they feed into kernels. After: no pointwise or reduce
/// node is left; kernels read through views by stride, so views that only kernels read are gone. Errors: kInternal when
/// the plan contradicts itself.
StatusOr<compiler::Graph> fusePointwise(const compiler::Graph& graph);

/// Needs fused kernels. Decides which kernel results live in the call's arena, and where.
MemoryPlan planMemory(const compiler::Graph& graph);

/// Needs a memory plan. After which node each value that is not in the arena is dropped.
ReleasePlan planReleases(const compiler::Graph& graph, const MemoryPlan& memory);

/// Needs the final order of nodes. After which nodes gradients leave, and which. Arguments: compiler/options.h.
/// Errors: kInvalidArgument for an input that the graph lacks.
StatusOr<GradientStagePlan> planGradientStages(const compiler::Graph& graph, int64_t stageBytes,
                                               const std::vector<std::vector<int32_t>>& inputsInMemoryOf);

}  // namespace agspeed::passes
