// SPDX-License-Identifier: Apache-2.0
// assembleProgram: turns a planned graph into the Program of one entry. All targets share it: nothing here depends on
// how kernels are generated.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "compiler/graph/cluster.h"
#include "passes/pipeline.h"
#include "runtime/base/status.h"
#include "runtime/program.h"

namespace agspeed::compiler {

/// The distinct clusters of all entries of a region, in kernel order.
class ClusterTable {
 public:
  /// Index of an equal cluster; a new one is added.
  int32_t add(const Cluster& cluster);
  const std::vector<Cluster>& clusters() const { return clusters_; }

 private:
  std::vector<Cluster> clusters_;
  std::map<std::string, int32_t> indexOf_;
};

struct OperatorCounts {
  int32_t numCompiled = 0;  ///< FX operators that are now in kernels
  int32_t numExternal = 0;  ///< FX operators run through ATen, views not counted
};

/// Values keep the graph's ids. Outputs have the strides of the spec. Errors: kUnsupported if a symbol cannot be read
/// from any input.
StatusOr<runtime::Program> assembleProgram(const passes::PlannedGraph& planned, ClusterTable& clusters);

OperatorCounts countOperators(const Graph& graph);

}  // namespace agspeed::compiler
