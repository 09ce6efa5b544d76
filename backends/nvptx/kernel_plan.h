// SPDX-License-Identifier: Apache-2.0
// KernelPlan: how a Cluster is distributed over a GPU's threads, and the shape of its launches. Pure functions of the
// cluster and of a launch's integers: no MLIR, no driver.
//
//   flat      a thread computes `lanes` neighbouring columns of one row (of one block of rows, for a sum over rows)
//   resident  a group of threads shares a row and keeps the loaded values in registers from phase to phase
//   loop      the same with rows of any length: every phase reads the row again
//
// The extent counts units. A unit is a row, or a block of rows; a cluster without outer dimensions has one unit, and
// its extent counts columns. A group has blockDim.x threads, a power of two, and a block has blockDim.y groups. A group
// of more than 32 threads is a block of its own and uses barriers. Group sizes and the order of additions depend on the
// number of columns alone.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "compiler/graph/cluster.h"
#include "compiler/kernel/emit/cluster_schedule.h"

namespace agspeed::backends::nvptx {

enum class Entry : uint8_t { kFlat, kResident, kLoop };
constexpr size_t kNumEntries = 3;

constexpr int kFlatThreads = 256;      ///< per block
constexpr int kShortRowThreads = 128;  ///< per block, for groups that fit into a warp
constexpr int kMaxGroupThreads = 512;  ///< with kMaxRegisters each, this number fills a multiprocessor's register file
constexpr int kMaxRegisters = 128;     ///< per thread
constexpr int kWarpThreads = 32;
constexpr int kMaxSlots = 512;  ///< of a launch's parameter: the 4 KiB that every driver accepts

struct KernelPlan {
  int32_t outerRank = 0;
  int32_t numOperands = 0;
  bool sumsRows = false;
  bool isGrouped = false;  ///< entries kResident (if residentChunks > 0) and kLoop; else only kFlat
  int lanes = 4;           ///< neighbouring columns that a thread computes together: 16 bytes of the widest operand
  int residentChunks = 0;  ///< chunks of `lanes` columns that a thread keeps in registers
  compiler::ClusterSchedule schedule;

  std::vector<Entry> entries() const;
  /// Integers of a launch: see compiler/graph/cluster.h.
  int32_t numIntegers() const { return (outerRank + 1) * (1 + numOperands) + (sumsRows ? 1 : 0); }
  /// Number of 8-byte slots in the parameter of a launch.
  int32_t numSlots() const { return numOperands + numIntegers() + 2; }
};

/// Requires: cluster.verify(). Errors: kUnsupported as scheduleCluster(), and for more than kMaxSlots slots.
StatusOr<KernelPlan> planKernel(const compiler::Cluster& cluster);

/// Name of an entry's function in a module whose kernel has this symbol.
std::string entryName(const std::string& symbol, Entry entry);

struct LaunchShape {
  Entry entry = Entry::kFlat;
  uint32_t numBlocks = 0;  ///< 0: nothing to launch
  uint32_t blockX = 1;     ///< threads per group
  uint32_t blockY = 1;     ///< groups per block
};

/// The launch over [begin, end) of the extent. Errors: kInvalidArgument for more blocks than a grid may have.
StatusOr<LaunchShape> shapeLaunch(const KernelPlan& plan, const int64_t* integers, int64_t begin, int64_t end);

/// The one parameter of every entry, passed by value: pointers, integers, begin, end; the first plan.numSlots() slots.
using ParameterBlock = std::array<int64_t, kMaxSlots>;

/// Allocates no memory.
void fillParameters(const KernelPlan& plan, void* const* pointers, const int64_t* integers, int64_t begin, int64_t end,
                    ParameterBlock& block);

}  // namespace agspeed::backends::nvptx
