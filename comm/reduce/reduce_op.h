// SPDX-License-Identifier: Apache-2.0
// Reduction operations, and the order in which elements of several ranks are reduced.
//
// Every element is reduced in one canonical tree over rank numbers, whatever the algorithm, chunking and rails. Let p
// be the number of ranks, 2^k the largest power of two <= p, and e = p - 2^k. Ranks 2i and 2i+1 are paired for i < e. A
// balanced binary tree then reduces these pairs and the remaining ranks, in rank order. So results have the same bits
// for every algorithm. Examples:
//
//   6 ranks: ((0+1) + (2+3)) + (4+5)      5 ranks: ((0+1) + 2) + (3+4)
//
// 16-bit floats are accumulated in f32 over the whole tree and rounded once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

#include "runtime/base/dtype.h"
#include "runtime/base/status.h"

namespace agspeed::comm::reduce {

enum class ReduceOp : uint8_t {
  kSum,
  kProduct,
  kMin,  ///< for floats: NaN if any input is NaN
  kMax,  ///< for floats: NaN if any input is NaN
  kBitAnd,
  kBitOr,
  kBitXor,
  kAverage,           ///< the sum divided by the number of ranks; integers truncate
  kPremultipliedSum,  ///< the sum of inputs that each rank multiplied by its own factor
};

/// Returns the name of an operation: "sum", "premultiplied sum", ...
std::string_view toString(ReduceOp op);

/// Checks whether `op` is defined for `dtype`. Invalid argument: it is not, and the message says why. For bools, sum
/// and max are "or", product and min are "and".
Status checkReduction(ReduceOp op, DType dtype);

/// Returns the type of partial results of `dtype`: f32 for f16 and bf16, otherwise `dtype`.
DType accumulatorOf(DType dtype);

/// The canonical tree over `numLeaves`. Its balanced part has `numPositions` positions, a power of two. Position i is
/// one leaf or a pair of consecutive leaves.
struct CanonicalTree {
  explicit CanonicalTree(int numLeaves);

  int numPositions;  ///< the largest power of two <= numLeaves
  int numPairs;      ///< positions 0..numPairs-1 are pairs

  bool isPair(int position) const { return position < numPairs; }
  /// Returns the first leaf of `position`.
  int firstLeaf(int position) const { return isPair(position) ? 2 * position : position + numPairs; }
  /// Returns the position that `leaf` belongs to.
  int positionOf(int leaf) const { return leaf < 2 * numPairs ? leaf / 2 : leaf - numPairs; }
};

/// Folds `numLeaves` values along the canonical tree: leaf(i) makes one value, merge(left, right) joins two.
template <typename Leaf, typename Merge>
auto foldCanonically(int numLeaves, const Leaf& leaf, const Merge& merge) {
  const CanonicalTree tree(numLeaves);
  auto fold = [&](auto& self, int first, int count) -> decltype(leaf(0)) {
    if (count > 1) {
      auto left = self(self, first, count / 2);
      return merge(std::move(left), self(self, first + count / 2, count / 2));
    }
    const int at = tree.firstLeaf(first);
    if (!tree.isPair(first)) return leaf(at);
    auto left = leaf(at);
    return merge(std::move(left), leaf(at + 1));
  };
  return fold(fold, 0, tree.numPositions);
}

}  // namespace agspeed::comm::reduce
