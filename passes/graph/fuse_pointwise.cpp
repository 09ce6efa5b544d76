// SPDX-License-Identifier: Apache-2.0
// fuse-pointwise: plans kernels (fusion_plan.h) and replaces the nodes of each kernel by one launch (build_kernel.h).
//   %a = exp %x; %b = reduce_sum %a dims 1; %c = div %a, %b   ->   %c = kernel 0(%x)
// Equal kernels share one cluster. The pass never moves a read across a node that mutates the memory that is read.
#include <map>

#include "passes/graph/build_kernel.h"
#include "passes/graph/passes.h"
#include "passes/graph/recompute.h"

namespace agspeed::passes {

using compiler::Argument;
using compiler::Graph;
using compiler::Node;
using compiler::NodeKind;
using compiler::ValueId;

namespace {

Argument listOf(const compiler::Dims& dims) {
  Argument list = Argument::ofList({});
  for (const SymExpr& dim : dims) list.items.push_back(Argument::ofInteger(dim));
  return list;
}

// The node; a view of a view becomes a view of the value behind both.
Node withoutViewsBetween(const AccessResolver& resolver, Node node) {
  if (!node.viewOffset || resolver.rootOf(node.inputs[0]) == node.inputs[0]) return node;
  const compiler::TensorType& type = resolver.graph().typeOf(node.results[0]);
  node.viewOffset = resolver.offsetOf(node.results[0]);
  node.viewDims.reset();
  node.inputs[0] = resolver.rootOf(node.inputs[0]);
  node.target = "aten.as_strided.default";
  node.arguments = {Argument::ofInput(0), listOf(type.sizes), listOf(type.strides)};
  return node;
}

}  // namespace

StatusOr<Graph> fusePointwise(const Graph& graph) {
  AccessResolver resolver(graph);
  std::vector<FusionUnit> units = planFusion(resolver);
  std::vector<bool> isNeeded = valuesBetween(resolver, units);
  Graph result = graph;
  result.nodes.clear();
  std::map<std::string, int32_t> clusterOf;
  for (const FusionUnit& unit : units) {
    if (!unit.isKernel) {
      result.nodes.push_back(withoutViewsBetween(resolver, graph.nodes[unit.nodes[0]]));
      continue;
    }
    BuiltKernel kernel = buildKernel(resolver, unit, isNeeded);
    auto [found, isNew] = clusterOf.emplace(kernel.cluster.toString(), static_cast<int32_t>(result.clusters.size()));
    if (isNew) result.clusters.push_back(std::move(kernel.cluster));
    kernel.launch.cluster = found->second;
    result.nodes.push_back(std::move(kernel.launch));
  }
  return result;
}

}  // namespace agspeed::passes
