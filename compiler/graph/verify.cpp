// SPDX-License-Identifier: Apache-2.0
// verify(Graph): the rules that every pass relies on and has to keep.
#include <algorithm>
#include <set>

#include "compiler/graph/graph.h"
#include "runtime/base/format.h"

namespace agspeed::compiler {
namespace {

class Verifier {
 public:
  explicit Verifier(const Graph& graph) : graph_(graph), isDefined_(graph.values.size(), false) {}

  Status verify() {
    AG_RETURN_IF_ERROR(verifyValues());
    countUses();
    for (ValueId input : graph_.inputs) isDefined_[input] = true;
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      if (Status status = verifyNode(graph_.nodes[i]); !status.isOk()) {
        return internalError("graph node {} ({}): {}", i, describe(graph_.nodes[i]), status.message());
      }
    }
    for (ValueId output : graph_.outputs) {
      if (output != kNoValue && !isDefined_.at(output)) return internalError("an output is not defined");
    }
    for (const Cluster& cluster : graph_.clusters) AG_RETURN_IF_ERROR(cluster.verify());
    return {};
  }

 private:
  std::string describe(const Node& node) const {
    std::string name = node.kind == NodeKind::kCall     ? node.target
                       : node.kind == NodeKind::kKernel ? formatText("kernel {}", node.cluster)
                                                        : std::string(infoOf(node.op).name);
    return node.origin.empty() ? name : name + " from " + node.origin;
  }

  void countUses() {
    numUses_.assign(graph_.values.size(), 0);
    const auto use = [this](ValueId value) {
      if (value >= 0 && static_cast<size_t>(value) < numUses_.size()) ++numUses_[value];
    };
    for (const Node& node : graph_.nodes) std::ranges::for_each(node.inputs, use);
    std::ranges::for_each(graph_.outputs, use);
    isNative_.assign(graph_.values.size(), false);
  }

  Status verifyValues() {
    std::set<std::string_view> names;
    for (size_t v = 0; v < graph_.values.size(); ++v) {
      const Value& value = graph_.values[v];
      if (!names.insert(value.name).second) return internalError("two values are named %" + value.name);
      if (value.type.sizes.size() != value.type.strides.size()) {
        return internalError("%" + value.name + " has another number of strides than of sizes");
      }
      isDefined_[v] = value.isScalar;
    }
    return {};
  }

  Status verifyNode(const Node& node) {
    for (ValueId input : node.inputs) {
      if (input < 0 || !isDefined_.at(input)) return internalError("uses a value that is not defined before it");
      if (graph_.values[input].isScalar) return internalError("uses an integer as a tensor");
    }
    for (ValueId result : node.results) {
      if (result == kNoValue) continue;
      if (isDefined_.at(result)) return internalError("defines %" + graph_.values[result].name + " a second time");
      isDefined_[result] = true;
      isNative_[result] = node.kind != NodeKind::kCall && node.kind != NodeKind::kJoin;
    }
    if (node.kind != NodeKind::kCall &&
        std::ranges::any_of(node.inputs, [&](ValueId input) { return graph_.values[input].isOnHost; })) {
      return internalError("reads a tensor of the host in a graph for another device");
    }
    switch (node.kind) {
      case NodeKind::kPointwise: return verifyPointwise(node);
      case NodeKind::kReduce: return verifyReduce(node);
      case NodeKind::kCall: return verifyCall(node);
      case NodeKind::kJoin: return verifyJoin(node);
      case NodeKind::kKernel: return verifyKernel(node);
    }
    return {};
  }

  Status verifyDTypes(const Node& node) {
    if (node.results.size() != 1 || node.results[0] == kNoValue) return internalError("must have one result");
    std::vector<DType> inputs;
    for (ValueId input : node.inputs) inputs.push_back(graph_.typeOf(input).dtype);
    return checkTyping(node.op, graph_.typeOf(node.results[0]).dtype, inputs);
  }

  Status verifyPointwise(const Node& node) {
    bool isReduction = infoOf(node.op).isReduction || node.op == PointwiseOp::kSumRows;
    if (isReduction || node.op == PointwiseOp::kLoad) return internalError("is not element-wise");
    AG_RETURN_IF_ERROR(verifyDTypes(node));
    const Dims& result = graph_.typeOf(node.results[0]).sizes;
    for (ValueId input : node.inputs) {
      const Dims& sizes = graph_.typeOf(input).sizes;
      if (sizes.size() > result.size()) return internalError("an input has more dimensions than the result");
      if (!broadcastsTo(sizes, result)) {
        return internalError("%" + graph_.values[input].name + " does not broadcast to the result");
      }
    }
    return {};
  }

  Status verifyReduce(const Node& node) {
    AG_RETURN_IF_ERROR(verifyDTypes(node));
    if (node.op == PointwiseOp::kSumRows) return verifySumRows(node);
    if (!infoOf(node.op).isReduction) return internalError("is not a reduction");
    const Dims& input = graph_.typeOf(node.inputs[0]).sizes;
    const Dims& result = graph_.typeOf(node.results[0]).sizes;
    size_t numKept = input.size() - static_cast<size_t>(node.numReducedDims);
    if (node.numReducedDims < 1 || numKept > input.size()) return internalError("reduces an impossible number of dims");
    if (result.size() != numKept && result.size() != input.size()) return internalError("has a result of another rank");
    for (size_t i = 0; i < result.size(); ++i) {
      if (i < numKept ? !sameValue(input[i], result[i]) : !isOne(result[i])) {
        return internalError("has a result of another size in dimension {}", i);
      }
    }
    return {};
  }

  // The result ends with the columns. Before them are dimensions of size 1, or the blocks.
  Status verifySumRows(const Node& node) {
    const Dims& input = graph_.typeOf(node.inputs[0]).sizes;
    const Dims& result = graph_.typeOf(node.results[0]).sizes;
    auto numRowDims = static_cast<size_t>(node.numReducedDims);
    if (node.numReducedDims < 1 || numRowDims >= input.size())
      return internalError("sums an impossible number of dims");
    size_t numColumnDims = input.size() - numRowDims;
    if (result.size() < numColumnDims) return internalError("has a result of another rank");
    size_t numOther = result.size() - numColumnDims;
    for (size_t i = 0; i < numColumnDims; ++i) {
      if (!sameValue(input[numRowDims + i], result[numOther + i])) return internalError("has other columns");
    }
    if (!isZero(node.blockRows)) return numOther == 1 ? Status() : internalError("needs one dimension of blocks");
    bool areOnes = std::all_of(result.begin(), result.begin() + static_cast<std::ptrdiff_t>(numOther), isOne);
    return areOnes ? Status() : internalError("has more than one row");
  }

  Status verifyCall(const Node& node) {
    if (node.target.empty()) return internalError("has no operator name");
    for (int32_t position : node.effects.mutates) {
      if (position < 0 || static_cast<size_t>(position) >= node.inputs.size()) {
        return internalError("mutates an input that does not exist");
      }
    }
    if (!node.viewOffset) return node.viewDims ? internalError("has a view map without an offset") : Status();
    if (node.inputs.size() != 1 || node.results.size() != 1 || !node.effects.mayAlias) {
      return internalError("a view has one input, one result and aliases it");
    }
    if (!node.viewDims) return {};
    return node.viewDims->size() == graph_.typeOf(node.results[0]).rank() ? Status()
                                                                          : internalError("has a wrong view map");
  }

  Status verifyJoin(const Node& node) {
    if (node.results.size() != 1 || node.results[0] == kNoValue) return internalError("must have one result");
    if (node.inputs.empty() || node.offsets.size() != node.inputs.size() || !node.effects.mayAlias) {
      return internalError("needs parts with an offset each, and shares their memory");
    }
    for (ValueId part : node.inputs) {
      const std::string& name = graph_.values[part].name;
      if (!isNative_[part]) return internalError("%" + name + " is a part, but no native node makes it");
      if (numUses_[part] != 1) return internalError("%" + name + " is a part, and its join is not its only use");
      if (graph_.typeOf(part).dtype != graph_.typeOf(node.results[0]).dtype) {
        return internalError("%" + name + " is a part of another dtype");
      }
    }
    return {};
  }

  Status verifyKernel(const Node& node) {
    if (node.cluster < 0 || static_cast<size_t>(node.cluster) >= graph_.clusters.size()) {
      return internalError("launches a cluster that does not exist");
    }
    const Cluster& cluster = graph_.clusters[node.cluster];
    if (cluster.operands.size() != node.inputs.size() + node.results.size()) {
      return internalError("has another number of operands than its cluster");
    }
    size_t numStrides = static_cast<size_t>(cluster.outerRank) + 1;
    if (node.integers.size() != numStrides * (1 + cluster.operands.size()) + (cluster.sumsRows() ? 1 : 0)) {
      return internalError("has an integer table of the wrong length");
    }
    if (!node.offsets.empty() && node.offsets.size() != cluster.operands.size()) {
      return internalError("has another number of offsets than of operands");
    }
    for (size_t i = 0; i < cluster.operands.size(); ++i) {
      bool isOutput = i >= node.inputs.size();
      ValueId value = isOutput ? node.results[i - node.inputs.size()] : node.inputs[i];
      if (cluster.operands[i].isOutput != isOutput || cluster.operands[i].dtype != graph_.typeOf(value).dtype) {
        return internalError("operand {} does not match its cluster", i);
      }
    }
    return {};
  }

  const Graph& graph_;
  std::vector<bool> isDefined_;
  std::vector<bool> isNative_;  // by value: whether a node that becomes part of a kernel, or a kernel, makes it
  std::vector<int> numUses_;
};

}  // namespace

Status verify(const Graph& graph) { return Verifier(graph).verify(); }

}  // namespace agspeed::compiler
