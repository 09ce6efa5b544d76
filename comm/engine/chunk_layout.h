// SPDX-License-Identifier: Apache-2.0
// ChunkLayout: finds the chunks of a schedule in the memory of a call.
//
// A long operation runs as several segments. Each segment runs the whole schedule on one part of the memory. This part
// depends on the collective (isDivisible() in schedule.h):
//
//   divisible buffer   for example all-reduce: the next `segmentElements` * `numChunks` elements, divided into chunks
//   chunk per rank     for example all-gather: the next `segmentElements` elements of every chunk
//
// Segments do not overlap in memory, so several can be in flight. The sender and the receiver of a chunk divide it into
// the same segments, because both know its size and use the same segmentElements.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "comm/engine/call.h"

namespace agspeed::comm::engine {

/// Consecutive elements in memory.
struct Chunk {
  std::byte* data = nullptr;
  size_t numElements = 0;
};

class ChunkLayout {
 public:
  /// Chunk boundaries inside a segment are multiples of this many elements, so that SIMD vectors do not span chunks.
  static constexpr size_t kAlignment = 32;

  ChunkLayout() = default;
  /// Lays out the chunks of `call` at `rank`. `shares`: the relative sizes of a divisible buffer's chunks; empty: equal
  /// sizes. `call` and `shares` outlive the layout. Requires: the call is valid; `segmentElements` > 0; `shares` is
  /// empty or has one value per chunk, not all zero.
  ChunkLayout(const CollectiveCall& call, int rank, uint32_t numChunks, size_t segmentElements,
              std::span<const uint32_t> shares);

  uint32_t numSegments() const { return numSegments_; }
  /// Writes the addresses and sizes of the chunks of one segment to `input` and `output`. Chunks that the call omits
  /// get no elements.
  void locate(uint32_t segment, std::span<Chunk> input, std::span<Chunk> output) const;

 private:
  // The two rows of the table at the top: a divisible buffer, and a chunk per rank.
  void locateDivided(uint32_t segment, const BufferList& whole, std::span<Chunk> chunks) const;
  void locateListed(uint32_t segment, const BufferList& list, std::span<Chunk> chunks) const;
  /// Returns the first element of `chunk` in a segment of `numElements`; the end of the segment if `chunk` is beyond
  /// the last one.
  size_t boundary(uint32_t chunk, size_t numElements) const;

  const CollectiveCall* call_ = nullptr;
  uint32_t rank_ = 0;
  uint32_t numChunks_ = 1;
  size_t segmentElements_ = 1;
  std::span<const uint32_t> shares_;
  uint64_t totalShares_ = 0;
  uint32_t numSegments_ = 1;
};

}  // namespace agspeed::comm::engine
