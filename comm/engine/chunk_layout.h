// SPDX-License-Identifier: Apache-2.0
// Gives the chunks of a schedule their place in a call's memory.
//
// A long operation runs as several segments of its schedule, each on one part of the memory: of a divisible buffer a
// segment takes the next `segmentElements` elements per chunk and divides them into chunks; of a buffer that has a
// chunk per rank it takes the next `segmentElements` elements of every chunk. Segments share nothing, so they overlap
// in time. Ranks that share a chunk agree on its segments because both know its size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "comm/engine/call.h"

namespace agspeed::comm {

/// A run of elements in memory.
struct Chunk {
  std::byte* data = nullptr;
  size_t numElements = 0;
};

class ChunkLayout {
 public:
  /// Chunk boundaries inside a part are multiples of this many elements, so that vectors stay whole.
  static constexpr size_t kAlignment = 32;

  ChunkLayout() = default;
  /// `shares` are the relative sizes of a divisible buffer's chunks; empty: equal ones. `call` and `shares` must
  /// outlive this. Requires: the call is valid; `segmentElements` > 0; shares are empty or one per chunk and not all
  /// zero.
  ChunkLayout(const CollectiveCall& call, int rank, uint32_t numChunks, size_t segmentElements,
              std::span<const uint32_t> shares);

  uint32_t numSegments() const { return numSegments_; }
  /// Writes where the chunks of one segment are; chunks that are not there have no elements.
  void locate(uint32_t segment, std::span<Chunk> input, std::span<Chunk> output) const;

 private:
  void locateDivided(uint32_t segment, const BufferList& whole, std::span<Chunk> chunks) const;
  void locateListed(uint32_t segment, const BufferList& list, std::span<Chunk> chunks) const;
  size_t boundary(uint32_t chunk, size_t numElements) const;

  const CollectiveCall* call_ = nullptr;
  uint32_t rank_ = 0;
  uint32_t numChunks_ = 1;
  size_t segmentElements_ = 1;
  std::span<const uint32_t> shares_;
  uint64_t totalShares_ = 0;
  uint32_t numSegments_ = 1;
};

}  // namespace agspeed::comm
