// SPDX-License-Identifier: Apache-2.0
#include "comm/collective/chunk_layout.h"

#include <algorithm>
#include <numeric>

namespace agspeed::comm {

namespace {

size_t divideUp(size_t value, size_t by) { return value / by + (value % by != 0); }

size_t longest(const Pieces& pieces) {
  size_t size = 0;
  for (const auto piece : pieces) size = std::max(size, piece.size());
  return size;
}

}  // namespace

Geometry::Geometry(const CollectiveCall& call, int rank, uint32_t numPieces, size_t segment,
                   std::span<const uint32_t> shares)
    : call_(&call),
      rank_(static_cast<uint32_t>(rank)),
      numPieces_(numPieces),
      segment_(segment),
      shares_(shares),
      totalShares_(std::accumulate(shares.begin(), shares.end(), uint64_t{0})) {
  const size_t bytes = std::max(longest(call.input), longest(call.output));
  const size_t numElements = bytes / sizeInBytes(call.dtype);
  const size_t perInstance = isDivisible(call.collective) ? segment * numPieces : segment;
  numInstances_ = static_cast<uint32_t>(std::max<size_t>(1, divideUp(numElements, perInstance)));
}

void Geometry::locate(uint32_t instance, std::span<Piece> input, std::span<Piece> output) const {
  if (isDivisible(call_->collective)) {
    locateDivided(instance, call_->input, input);
    locateDivided(instance, call_->output, output);
  } else {
    locateListed(instance, call_->input, input);
    locateListed(instance, call_->output, output);
  }
}

size_t Geometry::boundary(uint32_t piece, size_t numElements) const {
  if (piece >= numPieces_) return numElements;
  size_t exact = 0;
  if (shares_.empty()) {
    exact = divideUp(numElements, numPieces_) * piece;
  } else {
    const uint64_t before = std::accumulate(shares_.begin(), shares_.begin() + piece, uint64_t{0});
    exact = static_cast<size_t>(static_cast<double>(numElements) * static_cast<double>(before) /
                                static_cast<double>(totalShares_));
  }
  return std::min(numElements, divideUp(exact, kAlignment) * kAlignment);
}

void Geometry::locateDivided(uint32_t instance, const Pieces& whole, std::span<Piece> pieces) const {
  std::fill(pieces.begin(), pieces.end(), Piece{});
  if (whole.empty()) return;
  const size_t elementBytes = sizeInBytes(call_->dtype);
  const size_t numElements = whole[0].size() / elementBytes;
  const size_t first = std::min(numElements, segment_ * numPieces_ * instance);
  const size_t count = std::min(numElements - first, segment_ * numPieces_);
  for (uint32_t i = 0; i < numPieces_; ++i) {
    const size_t begin = boundary(i, count);
    pieces[i] = {whole[0].data() + (first + begin) * elementBytes, boundary(i + 1, count) - begin};
  }
}

void Geometry::locateListed(uint32_t instance, const Pieces& list, std::span<Piece> pieces) const {
  std::fill(pieces.begin(), pieces.end(), Piece{});
  const size_t elementBytes = sizeInBytes(call_->dtype);
  for (uint32_t i = 0; i < list.size(); ++i) {
    // A single piece is that of the own rank.
    const uint32_t at = list.size() == 1 && numPieces_ > 1 ? rank_ : i;
    const size_t numElements = list[i].size() / elementBytes;
    const size_t first = std::min(numElements, segment_ * instance);
    pieces[at] = {list[i].data() + first * elementBytes, std::min(numElements - first, segment_)};
  }
}

}  // namespace agspeed::comm
