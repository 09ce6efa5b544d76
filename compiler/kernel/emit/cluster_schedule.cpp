// SPDX-License-Identifier: Apache-2.0
#include "compiler/kernel/emit/cluster_schedule.h"

#include <algorithm>

namespace agspeed::compiler {
namespace {

bool isComplex(DType dtype) { return dtype == DType::kC64 || dtype == DType::kC128; }

Status checkOperands(const Cluster& cluster) {
  for (const ClusterOperand& operand : cluster.operands) {
    if (isComplex(operand.dtype)) return unsupported("complex operands have no generated kernel");
    if (operand.isOutput && operand.isPerRow && cluster.outerRank == 0) {
      return unsupported("a per-row output needs an outer dimension");
    }
    if (operand.isOutput && !operand.isPerRow && operand.columns == ClusterOperand::Columns::kBroadcast) {
      return unsupported("an output with broadcast columns would be written more than once");
    }
  }
  return {};
}

Status checkShape(const Cluster& cluster) {
  if (cluster.outerRank > kMaxOuterRank) {
    return unsupported("kernels have at most {} outer dimensions, got {}", kMaxOuterRank, cluster.outerRank);
  }
  if (cluster.outerRank == 0 && cluster.hasReduction()) return unsupported("a reduction needs an outer dimension");
  return checkOperands(cluster);
}

bool isRowNode(const Cluster& cluster, const ClusterNode& node, const std::vector<bool>& isRow) {
  if (infoOf(node.op).isReduction) return true;
  if (node.op == PointwiseOp::kSumRows) return false;
  if (node.op == PointwiseOp::kLoad) {
    const ClusterOperand& operand = cluster.operands[node.operand];
    return operand.isPerRow || operand.columns == ClusterOperand::Columns::kBroadcast;
  }
  return std::all_of(node.inputs.begin(), node.inputs.end(), [&](int32_t input) { return isRow[input]; });
}

int numLanes(const Cluster& cluster) {
  auto isWide = [](const auto& part) { return !part.isPerRow && sizeInBytes(part.dtype) == 8; };
  bool anyWide = std::any_of(cluster.operands.begin(), cluster.operands.end(), isWide) ||
                 std::any_of(cluster.nodes.begin(), cluster.nodes.end(), isWide);
  return anyWide ? 8 : 16;
}

// Fills isRow, phase and reductions. Nodes are in execution order, so inputs come first.
void placeNodes(const Cluster& cluster, ClusterSchedule& schedule) {
  for (size_t index = 0; index < cluster.nodes.size(); ++index) {
    const ClusterNode& node = cluster.nodes[index];
    schedule.isRow.push_back(isRowNode(cluster, node, schedule.isRow));
    int phase = 0;
    for (int32_t input : node.inputs) phase = std::max(phase, schedule.phase[input]);
    if (infoOf(node.op).isReduction) {
      schedule.reductions.resize(std::max<size_t>(schedule.reductions.size(), phase + 1));
      schedule.reductions[phase].push_back(static_cast<int>(index));
      ++phase;
    }
    schedule.phase.push_back(phase);
  }
}

}  // namespace

StatusOr<ClusterSchedule> scheduleCluster(const Cluster& cluster) {
  AG_RETURN_IF_ERROR(checkShape(cluster));
  ClusterSchedule schedule;
  schedule.lanes = numLanes(cluster);
  placeNodes(cluster, schedule);
  for (const ClusterStore& store : cluster.stores) {
    if (cluster.operands[store.operand].isPerRow) {
      schedule.rowStores.push_back(store);
      continue;
    }
    schedule.elementStores.push_back(store);
    schedule.reductions.resize(std::max<size_t>(schedule.reductions.size(), schedule.phase[store.node] + 1));
  }
  return schedule;
}

}  // namespace agspeed::compiler
