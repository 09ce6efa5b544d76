// SPDX-License-Identifier: Apache-2.0
// ChunkLayout: where the chunks of a schedule are in a call's memory.
//
// A long operation runs as several segments of its schedule, each on one part of the memory. In a divisible buffer, a
// segment takes the next `segmentElements` elements per chunk and divides them into chunks. In a buffer with a chunk
// per rank, it takes the next `segmentElements` elements of every chunk. Segments share no memory, so they overlap in
// time. Two ranks that share a chunk agree on its segments because both know its size.
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
  /// Chunk boundaries inside a segment are multiples of this many elements, so that vectors are not split.
  static constexpr size_t kAlignment = 32;

  ChunkLayout() = default;
  /// `shares` are the relative sizes of a divisible buffer's chunks; empty: equal sizes. `call` and `shares` outlive
  /// the layout. Requires: the call is valid; `segmentElements` > 0; `shares` is empty or has one value per chunk, not
  /// all zero.
  ChunkLayout(const CollectiveCall& call, int rank, uint32_t numChunks, size_t segmentElements,
              std::span<const uint32_t> shares);

  uint32_t numSegments() const { return numSegments_; }
  /// Writes the addresses and sizes of one segment's chunks; missing chunks have no elements.
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
