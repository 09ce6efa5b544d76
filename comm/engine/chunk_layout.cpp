// SPDX-License-Identifier: Apache-2.0
#include "comm/engine/chunk_layout.h"

#include <algorithm>
#include <numeric>

namespace agspeed::comm::engine {

namespace {

size_t divideUp(size_t value, size_t by) { return value / by + (value % by != 0); }

size_t longest(const BufferList& chunks) {
  size_t size = 0;
  for (const auto chunk : chunks) size = std::max(size, chunk.size());
  return size;
}

}  // namespace

ChunkLayout::ChunkLayout(const CollectiveCall& call, int rank, uint32_t numChunks, size_t segmentElements,
                         std::span<const uint32_t> shares)
    : call_(&call),
      rank_(static_cast<uint32_t>(rank)),
      numChunks_(numChunks),
      segmentElements_(segmentElements),
      shares_(shares),
      totalShares_(std::accumulate(shares.begin(), shares.end(), uint64_t{0})) {
  const size_t bytes = std::max(longest(call.input), longest(call.output));
  const size_t numElements = bytes / sizeInBytes(call.dtype);
  const size_t perSegment = isDivisible(call.collective) ? segmentElements * numChunks : segmentElements;
  numSegments_ = static_cast<uint32_t>(std::max<size_t>(1, divideUp(numElements, perSegment)));
}

void ChunkLayout::locate(uint32_t segment, std::span<Chunk> input, std::span<Chunk> output) const {
  if (isDivisible(call_->collective)) {
    locateDivided(segment, call_->input, input);
    locateDivided(segment, call_->output, output);
  } else {
    locateListed(segment, call_->input, input);
    locateListed(segment, call_->output, output);
  }
}

size_t ChunkLayout::boundary(uint32_t chunk, size_t numElements) const {
  if (chunk >= numChunks_) return numElements;
  size_t exact = 0;
  if (shares_.empty()) {
    exact = divideUp(numElements, numChunks_) * chunk;
  } else {
    const uint64_t before = std::accumulate(shares_.begin(), shares_.begin() + chunk, uint64_t{0});
    exact = static_cast<size_t>(static_cast<double>(numElements) * static_cast<double>(before) /
                                static_cast<double>(totalShares_));
  }
  return std::min(numElements, divideUp(exact, kAlignment) * kAlignment);
}

void ChunkLayout::locateDivided(uint32_t segment, const BufferList& whole, std::span<Chunk> chunks) const {
  std::fill(chunks.begin(), chunks.end(), Chunk{});
  if (whole.empty()) return;
  const size_t elementBytes = sizeInBytes(call_->dtype);
  const size_t numElements = whole[0].size() / elementBytes;
  const size_t first = std::min(numElements, segmentElements_ * numChunks_ * segment);
  const size_t count = std::min(numElements - first, segmentElements_ * numChunks_);
  for (uint32_t i = 0; i < numChunks_; ++i) {
    const size_t begin = boundary(i, count);
    chunks[i] = {whole[0].data() + (first + begin) * elementBytes, boundary(i + 1, count) - begin};
  }
}

void ChunkLayout::locateListed(uint32_t segment, const BufferList& list, std::span<Chunk> chunks) const {
  std::fill(chunks.begin(), chunks.end(), Chunk{});
  const size_t elementBytes = sizeInBytes(call_->dtype);
  for (uint32_t i = 0; i < list.size(); ++i) {
    // A list with a single chunk has only the chunk of the caller's own rank.
    const uint32_t at = list.size() == 1 && numChunks_ > 1 ? rank_ : i;
    const size_t numElements = list[i].size() / elementBytes;
    const size_t first = std::min(numElements, segmentElements_ * segment);
    chunks[at] = {list[i].data() + first * elementBytes, std::min(numElements - first, segmentElements_)};
  }
}

}  // namespace agspeed::comm::engine
