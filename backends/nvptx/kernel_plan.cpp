// SPDX-License-Identifier: Apache-2.0
#include "backends/nvptx/kernel_plan.h"

#include <algorithm>
#include <bit>
#include <limits>

namespace agspeed::backends::nvptx {

using compiler::Cluster;
using compiler::ClusterNode;
using compiler::ClusterOperand;
using compiler::ClusterSchedule;
using compiler::infoOf;
using compiler::PointwiseOp;

namespace {

constexpr int64_t kAccessBytes = 16;
constexpr int kMaxLanes = 8;
// Registers that a thread may spend on values it holds, of kMaxRegisters: the rest is for addresses and formulas.
constexpr int kLoadRegisters = 64;
constexpr int kResidentRegisters = 64;
constexpr int64_t kMaxBlocks = std::numeric_limits<int32_t>::max();

int64_t ceilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

int registersOf(DType dtype) { return sizeInBytes(dtype) == 8 ? 2 : 1; }

// As many as fill 128 bits of the widest operand, fewer where the loads alone would fill the registers.
int chooseLanes(const Cluster& cluster) {
  int64_t widest = 1;
  int registers = 0;
  bool hasElements = false;
  for (const ClusterOperand& operand : cluster.operands) {
    if (operand.isPerRow) continue;
    hasElements = true;
    widest = std::max(widest, static_cast<int64_t>(sizeInBytes(operand.dtype)));
    registers += registersOf(operand.dtype);
  }
  int lanes = hasElements ? std::min<int>(kMaxLanes, static_cast<int>(kAccessBytes / widest)) : 1;
  while (lanes > 1 && lanes * registers > kLoadRegisters) lanes /= 2;
  return lanes;
}

// Which element nodes a thread holds from one phase to a later one.
class Liveness {
 public:
  Liveness(const Cluster& cluster, const ClusterSchedule& schedule)
      : cluster_(cluster),
        schedule_(schedule),
        first_(cluster.nodes.size(), -1),
        last_(cluster.nodes.size(), -1) {
    int numPhases = schedule.numPhases();
    for (int phase = 0; phase < numPhases; ++phase) {
      for (int reduction : schedule.reductions[phase]) use(cluster.nodes[reduction].inputs[0], phase);
    }
    for (const compiler::ClusterStore& store : schedule.elementStores) {
      const ClusterNode& node = cluster.nodes[store.node];
      use(node.op == PointwiseOp::kSumRows ? node.inputs[0] : store.node, numPhases - 1);
    }
  }

  /// Registers for one column, at the border of phases that needs most.
  int registersPerColumn() const {
    int most = 0;
    for (int border = 0; border + 1 < schedule_.numPhases(); ++border) {
      int registers = 0;
      for (size_t i = 0; i < first_.size(); ++i) {
        bool isHeld = first_[i] >= 0 && first_[i] <= border && last_[i] > border;
        if (isHeld) registers += registersOf(cluster_.nodes[i].dtype);
      }
      most = std::max(most, registers);
    }
    return most;
  }

 private:
  void use(int32_t index, int phase) {
    if (schedule_.isRow[index]) return;
    last_[index] = phase;
    if (first_[index] >= 0) return;
    first_[index] = phase;
    for (int32_t input : cluster_.nodes[index].inputs) use(input, phase);
  }

  const Cluster& cluster_;
  const ClusterSchedule& schedule_;
  std::vector<int> first_;
  std::vector<int> last_;
};

int chooseResidentChunks(const Cluster& cluster, const KernelPlan& plan) {
  int perColumn = Liveness(cluster, plan.schedule).registersPerColumn();
  for (const ClusterNode& node : cluster.nodes) {
    if (node.op == PointwiseOp::kSumRows) perColumn += registersOf(node.dtype);
  }
  for (int chunks : {2, 1}) {
    if (chunks * plan.lanes * perColumn <= kResidentRegisters) return chunks;
  }
  return 0;
}

int64_t numUnits(const KernelPlan& plan, int64_t begin, int64_t end) { return plan.outerRank == 0 ? 1 : end - begin; }

LaunchShape shapeGroups(const KernelPlan& plan, int64_t columns) {
  LaunchShape shape;
  int64_t chunks = ceilDiv(columns, plan.lanes);
  bool isResident = columns > 0 && chunks <= int64_t{kMaxGroupThreads} * plan.residentChunks;
  shape.entry = isResident ? Entry::kResident : Entry::kLoop;
  int64_t perThread = isResident ? plan.residentChunks : 1;
  auto wanted = static_cast<uint64_t>(std::clamp<int64_t>(ceilDiv(chunks, perThread), 1, kMaxGroupThreads));
  shape.blockX = static_cast<uint32_t>(std::bit_ceil(wanted));
  shape.blockY = shape.blockX <= kWarpThreads ? kShortRowThreads / shape.blockX : 1;
  return shape;
}

}  // namespace

std::vector<Entry> KernelPlan::entries() const {
  if (!isGrouped) return {Entry::kFlat};
  if (residentChunks == 0) return {Entry::kLoop};
  return {Entry::kResident, Entry::kLoop};
}

StatusOr<KernelPlan> planKernel(const Cluster& cluster) {
  KernelPlan plan;
  AG_ASSIGN_OR_RETURN(plan.schedule, compiler::scheduleCluster(cluster));
  plan.outerRank = cluster.outerRank;
  plan.numOperands = static_cast<int32_t>(cluster.operands.size());
  plan.sumsRows = cluster.sumsRows();
  plan.isGrouped = cluster.hasReduction() || !plan.schedule.rowStores.empty();
  plan.lanes = chooseLanes(cluster);
  if (plan.isGrouped) plan.residentChunks = chooseResidentChunks(cluster, plan);
  return plan;
}

std::string entryName(const std::string& symbol, Entry entry) {
  constexpr const char* kSuffixes[] = {"_flat", "_resident", "_loop"};
  return symbol + kSuffixes[static_cast<size_t>(entry)];
}

StatusOr<LaunchShape> shapeLaunch(const KernelPlan& plan, const int64_t* integers, int64_t begin, int64_t end) {
  LaunchShape shape;
  if (end <= begin) return shape;
  int64_t columns = plan.outerRank == 0 ? end - begin : integers[plan.outerRank];
  int64_t blocks = 0;
  if (plan.isGrouped) {
    shape = shapeGroups(plan, columns);
    blocks = ceilDiv(numUnits(plan, begin, end), shape.blockY);
  } else {
    shape.blockX = kFlatThreads;
    blocks = ceilDiv(numUnits(plan, begin, end) * ceilDiv(columns, plan.lanes), kFlatThreads);
  }
  if (blocks > kMaxBlocks) return invalidArgument("a launch of {} blocks; a grid has at most {}", blocks, kMaxBlocks);
  shape.numBlocks = static_cast<uint32_t>(blocks);
  return shape;
}

std::vector<int64_t> parameterBlock(const KernelPlan& plan, void* const* pointers, const int64_t* integers,
                                    int64_t begin, int64_t end) {
  std::vector<int64_t> block;
  block.reserve(static_cast<size_t>(plan.numOperands + plan.numIntegers() + 2));
  for (int32_t i = 0; i < plan.numOperands; ++i) block.push_back(reinterpret_cast<int64_t>(pointers[i]));
  block.insert(block.end(), integers, integers + plan.numIntegers());
  block.push_back(begin);
  block.push_back(end);
  return block;
}

}  // namespace agspeed::backends::nvptx
