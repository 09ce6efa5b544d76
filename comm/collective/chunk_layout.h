// SPDX-License-Identifier: Apache-2.0
// Gives the pieces of a schedule their place in a call's memory.
//
// A long operation runs as several instances of its schedule, each on one part of the memory: of a divisible buffer an
// instance takes the next `segment` elements per piece and divides them into pieces; of a buffer that has a piece per
// rank it takes the next `segment` elements of every piece. Instances share nothing, so they overlap in time. Ranks
// that share a piece agree on its segments because both know its size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "comm/collective/call.h"

namespace agspeed::comm {

/// A run of elements in memory.
struct Piece {
  std::byte* data = nullptr;
  size_t numElements = 0;
};

class Geometry {
 public:
  /// Piece boundaries inside a part are multiples of this many elements, so that vectors stay whole.
  static constexpr size_t kAlignment = 32;

  Geometry() = default;
  /// `shares` are the relative sizes of a divisible buffer's pieces; empty: equal ones. `call` and `shares` must
  /// outlive this. Requires: the call is valid; `segment` > 0; shares are empty or one per piece and not all zero.
  Geometry(const CollectiveCall& call, int rank, uint32_t numPieces, size_t segment, std::span<const uint32_t> shares);

  uint32_t numInstances() const { return numInstances_; }
  /// Writes where the pieces of one instance are; pieces that are not there have no elements.
  void locate(uint32_t instance, std::span<Piece> input, std::span<Piece> output) const;

 private:
  void locateDivided(uint32_t instance, const Pieces& whole, std::span<Piece> pieces) const;
  void locateListed(uint32_t instance, const Pieces& list, std::span<Piece> pieces) const;
  size_t boundary(uint32_t piece, size_t numElements) const;

  const CollectiveCall* call_ = nullptr;
  uint32_t rank_ = 0;
  uint32_t numPieces_ = 1;
  size_t segment_ = 1;
  std::span<const uint32_t> shares_;
  uint64_t totalShares_ = 0;
  uint32_t numInstances_ = 1;
};

}  // namespace agspeed::comm
