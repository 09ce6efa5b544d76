// SPDX-License-Identifier: Apache-2.0
#include "backends/nvptx/kernel_plan.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "backends/nvptx/register_estimate.h"

namespace agspeed::backends::nvptx {

using compiler::Cluster;
using compiler::ClusterOperand;

namespace {

constexpr int64_t kAccessBytes = 16;
constexpr int kMaxLanes = 8;
constexpr int kMaxFormulas = 24;        // in a thread's code
constexpr int kTemporaries = 3;         // per column, inside an operation
constexpr int kResidentRegisters = 96;  // by the estimate, which omits formulas; kMaxRegisters applies with a single
                                        // chunk
constexpr int64_t kMaxBlocks = std::numeric_limits<int32_t>::max();

int64_t ceilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The number of columns that fill 128 bits of the widest operand.
int widestLanes(const Cluster& cluster) {
  int64_t widest = 0;
  for (const ClusterOperand& operand : cluster.operands) {
    if (!operand.isPerRow) widest = std::max(widest, static_cast<int64_t>(sizeInBytes(operand.dtype)));
  }
  return widest == 0 ? 1 : std::min<int>(kMaxLanes, static_cast<int>(kAccessBytes / widest));
}

// Whether a thread has enough registers to keep `chunks` chunks of `lanes` columns from phase to phase while it works
// on one of them.
bool fits(const RegisterEstimate& estimate, int lanes, int chunks) {
  int perColumn = estimate.peak + kTemporaries + (chunks - 1) * estimate.held + chunks * estimate.sums;
  int limit = chunks > 1 ? kResidentRegisters : kMaxRegisters;
  return estimate.fixed + lanes * perColumn <= limit && estimate.formulas * lanes * chunks <= kMaxFormulas;
}

void chooseChunks(const Cluster& cluster, KernelPlan& plan) {
  RegisterEstimate estimate = estimateRegisters(cluster, plan.schedule);
  plan.lanes = widestLanes(cluster);
  while (plan.lanes > 1 && !fits(estimate, plan.lanes, 1)) plan.lanes /= 2;
  if (!plan.isGrouped) return;
  for (int chunks : {1, 2}) {
    if (fits(estimate, plan.lanes, chunks)) plan.residentChunks = chunks;
  }
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
  if (cluster.window) return unsupported("there is no GPU kernel for {}", compiler::infoOf(cluster.window->op).name);
  KernelPlan plan;
  AG_ASSIGN_OR_RETURN(plan.schedule, compiler::scheduleCluster(cluster));
  plan.outerRank = cluster.outerRank;
  plan.numOperands = static_cast<int32_t>(cluster.operands.size());
  plan.sumsRows = cluster.sumsRows();
  plan.isGrouped = cluster.hasReduction() || !plan.schedule.rowStores.empty();
  if (plan.numSlots() > kMaxSlots) {
    return unsupported("a GPU kernel over {} tensors of rank {} takes {} bytes of parameters, a launch at most {}",
                       plan.numOperands, plan.outerRank + 1, 8 * plan.numSlots(), 8 * kMaxSlots);
  }
  chooseChunks(cluster, plan);
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

void fillParameters(const KernelPlan& plan, void* const* pointers, const int64_t* integers, int64_t begin, int64_t end,
                    ParameterBlock& block) {
  auto slot = std::transform(pointers, pointers + plan.numOperands, block.begin(),
                             [](void* pointer) { return reinterpret_cast<int64_t>(pointer); });
  slot = std::copy(integers, integers + plan.numIntegers(), slot);
  *slot++ = begin;
  *slot = end;
}

}  // namespace agspeed::backends::nvptx
