// SPDX-License-Identifier: Apache-2.0
// A collective operation as data: what one rank sends, receives, reduces and copies, and in which order.
//
// A schedule knows neither sizes nor types nor addresses. It uses chunks of two buffers, the caller's input and output,
// and of scratch buffers that are as large as some of these chunks. Sizes of chunks may differ and may be zero.
//
//   collective                        input            output
//   all-reduce, broadcast, reduce     P equal chunks   the same P chunks       the algorithm chooses P
//   all-gather, gather                chunk `rank`     a chunk per rank
//   reduce-scatter, scatter           a chunk per rank chunk `rank`
//   all-to-all                        one per receiver one per sender
//   barrier                           one byte         none
//
// Input chunk i and output chunk i may be the same memory, except for all-to-all; no other chunks overlap. The input is
// only read. Thread-safety: a finished schedule is immutable.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace agspeed::comm::schedule {

enum class Collective : uint8_t {
  kAllGather,
  kAllReduce,
  kAllToAll,
  kBarrier,
  kBroadcast,
  kGather,
  kReduce,
  kReduceScatter,
  kScatter,
};

/// Returns the name of the collective: "all_gather", "all_reduce", ...
std::string_view toString(Collective collective);
bool isReduction(Collective collective);
/// Returns whether one rank is the root: broadcast, gather, reduce, scatter.
bool hasRoot(Collective collective);
/// Returns whether the algorithm chooses the number of chunks (first row of the table above). Otherwise there is one
/// chunk per rank.
bool isDivisible(Collective collective);

enum class BufferKind : uint8_t { kInput, kOutput, kScratch };

/// Chunks first .. first + count - 1 of a buffer.
struct ChunkRange {
  BufferKind buffer = BufferKind::kInput;
  uint32_t scratch = 0;  ///< index of the scratch buffer if the range is in one (kScratch)
  uint32_t first = 0;
  uint32_t count = 0;
  bool operator==(const ChunkRange&) const = default;
};

/// Scratch memory as large as some chunks of the input or output, with the same chunk numbers.
struct ScratchBuffer {
  ChunkRange like;
  bool isWide = false;  ///< whether the buffer holds partial results, which have the accumulator type
};

enum class StepKind : uint8_t { kSend, kReceive, kReduce, kCopy };

struct Step {
  StepKind kind = StepKind::kSend;
  int peer = -1;                       ///< rank of the peer of a send or receive
  uint32_t tag = 0;                    ///< tag of a send or receive, unique among messages from one rank to another
  ChunkRange range;                    ///< the chunks that the step sends, receives or writes
  std::vector<ChunkRange> sources;     ///< inputs of a copy, or of a reduction in canonical order (reduce_op.h)
  bool isResult = false;               ///< for a reduction: it yields the final value, which is divided and rounded
  std::vector<uint32_t> dependencies;  ///< earlier steps that must finish before this step starts
};

/// One rank's part of a collective operation.
struct Schedule {
  int rank = 0;
  int numRanks = 1;
  uint32_t numChunks = 1;
  bool mayBeInPlace = true;  ///< whether input and output may be the same memory
  std::vector<ScratchBuffer> scratch;
  std::vector<Step> steps;  ///< can be executed one after another in this order

  /// Returns a number that is larger than every tag, in the schedules of all algorithms and all ranks.
  uint32_t tagLimit() const { return 2 * static_cast<uint32_t>(numRanks) + 64; }
  bool isWide(const ChunkRange& range) const {
    return range.buffer == BufferKind::kScratch && scratch[range.scratch].isWide;
  }
  /// Returns whether two ranges may overlap in memory.
  bool overlap(const ChunkRange& a, const ChunkRange& b) const;
  /// Returns whether two steps access the same memory and at least one of them writes it.
  bool conflict(const Step& a, const Step& b) const;
};

}  // namespace agspeed::comm::schedule
