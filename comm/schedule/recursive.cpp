// SPDX-License-Identifier: Apache-2.0
// Recursive doubling and halving: all-reduces along the canonical tree (reduce_op.h).
//
// A position of the tree is one rank or a pair. The second rank of a pair sends its contribution to the first rank, and
// receives the result from it at the end. In between, the first ranks of the P positions run log2 P rounds. In the
// round of distance d = 1, 2, 4, ... position i exchanges with position i xor d. Each of the two positions has the
// partial result of a subtree of d positions, and the two subtrees are siblings in the tree. S is the size of the
// buffer.
//
//   doubling  Both positions send their whole partial result: log2 P messages of S bytes. It is for short buffers.
//   halving   Each position keeps half of its chunks and sends the other half, so that each position owns one of P
//             chunks in the end. The same rounds in reverse order gather the result. A position sends 2 log2 P messages
//             with 2 (P-1)/P S bytes in all.
//
// Partial results have the accumulator type (they are "wide"). So 16-bit floats are sent as f32, with twice the bytes,
// from the second round on.
#include "comm/reduce/reduce_op.h"
#include "comm/schedule/algorithms.h"

namespace agspeed::comm::schedule {

namespace {

using B = ScheduleBuilder;

/// The common parts of doubling and halving: the partners of a rank in the rounds, and the steps of pairs before and
/// after the rounds.
class Recursion {
 public:
  Recursion(const ScheduleRequest& request, const reduce::CanonicalTree& tree, uint32_t numChunks)
      : builder(request, numChunks),
        tree_(tree),
        position_(tree.positionOf(request.rank)),
        isSecond_(tree.isPair(position_) && request.rank != tree.firstLeaf(position_)),
        isSingle_(request.numRanks == 1),
        all_(numChunks) {}

  /// Returns whether this rank is the right sibling of its partner at `distance`.
  bool isRight(int distance) const { return (position_ & distance) != 0; }
  int partner(int distance) const { return tree_.firstLeaf(position_ ^ distance); }

  /// Returns the range that holds the value of this position. Without a pair, it is this rank's contribution. For a
  /// pair, this function adds the step that reduces the two contributions, and returns the result. Requires:
  /// takesPart().
  ChunkRange join() {
    const ChunkRange own = B::input(0, all_);
    if (!tree_.isPair(position_)) return own;
    const ChunkRange other = builder.scratch(own);
    builder.receive(tree_.firstLeaf(position_) + 1, other, kPairTag);
    return merge(own, other, false);
  }

  /// Adds scratch memory for the `chunks` that the partner at `distance` sends. It is wide, unless the partner sends
  /// the contribution of a single rank.
  ChunkRange fromPartner(const ChunkRange& chunks, int distance) {
    const bool isWide = distance > 1 || tree_.isPair(position_ ^ distance);
    return isWide ? builder.wideScratch(chunks) : builder.scratch(chunks);
  }

  /// Reduces the values of two siblings of the tree, `left` first. Writes the final result to the output, and a partial
  /// result to wide scratch memory. Returns: the range of the result.
  ChunkRange merge(const ChunkRange& left, const ChunkRange& right, bool isFinal) {
    if (isFinal) {
      builder.reduceFinally(B::output(left.first, left.count), {left, right});
      return B::output(left.first, left.count);
    }
    const ChunkRange target = builder.wideScratch(left);
    builder.reducePartly(target, {left, right});
    return target;
  }

  /// Returns whether this rank takes part in the rounds. If it does not, adds its whole schedule. There are two such
  /// cases: a single rank, and the second rank of a pair. The second rank sends its contribution to the first rank and
  /// gets the result.
  bool takesPart() {
    if (isSingle_) {
      builder.reduceFinally(B::output(0, all_), {B::input(0, all_)});
    } else if (isSecond_) {
      const int first = tree_.firstLeaf(position_);
      builder.send(first, B::input(0, all_), kPairTag);
      builder.receive(first, B::output(0, all_), kPairTag);
    }
    return !isSingle_ && !isSecond_;
  }
  /// Sends the result to the second rank, if this rank is the first of a pair.
  void sendToSecond() {
    if (tree_.isPair(position_)) builder.send(tree_.firstLeaf(position_) + 1, B::output(0, all_), kPairTag);
  }

  B builder;

 private:
  static constexpr uint32_t kPairTag = 0;

  const reduce::CanonicalTree& tree_;
  const int position_;
  const bool isSecond_;
  const bool isSingle_;
  const uint32_t all_;
};

}  // namespace

Schedule doublingAllReduce(const ScheduleRequest& request) {
  const reduce::CanonicalTree tree(request.numRanks);
  Recursion recursion(request, tree, 1);
  B& builder = recursion.builder;
  if (!recursion.takesPart()) return std::move(builder).build();
  ChunkRange own = recursion.join();
  uint32_t tag = 1;
  for (int distance = 1; distance < tree.numPositions; distance *= 2, ++tag) {
    const ChunkRange other = recursion.fromPartner(B::input(0), distance);
    builder.send(recursion.partner(distance), own, tag);
    builder.receive(recursion.partner(distance), other, tag);
    const bool isRight = recursion.isRight(distance);
    own = recursion.merge(isRight ? other : own, isRight ? own : other, 2 * distance == tree.numPositions);
  }
  recursion.sendToSecond();
  return std::move(builder).build();
}

Schedule halvingAllReduce(const ScheduleRequest& request) {
  const reduce::CanonicalTree tree(request.numRanks);
  const auto numChunks = static_cast<uint32_t>(tree.numPositions);
  Recursion recursion(request, tree, numChunks);
  B& builder = recursion.builder;
  if (!recursion.takesPart()) return std::move(builder).build();
  ChunkRange own = recursion.join();
  uint32_t tag = 1;
  for (int distance = 1; distance < tree.numPositions; distance *= 2, ++tag) {
    const uint32_t half = own.count / 2;
    const bool isRight = recursion.isRight(distance);
    const ChunkRange kept = part(own, own.first + (isRight ? half : 0), half);
    const ChunkRange given = part(own, own.first + (isRight ? 0 : half), half);
    const ChunkRange other = recursion.fromPartner(B::input(kept.first, half), distance);
    builder.send(recursion.partner(distance), given, tag);
    builder.receive(recursion.partner(distance), other, tag);
    own = recursion.merge(isRight ? other : kept, isRight ? kept : other, 2 * distance == tree.numPositions);
  }
  for (int distance = tree.numPositions / 2; distance > 0; distance /= 2, ++tag) {
    const uint32_t count = own.count;
    const bool isRight = recursion.isRight(distance);
    const uint32_t first = isRight ? own.first - count : own.first;
    builder.send(recursion.partner(distance), own, tag);
    builder.receive(recursion.partner(distance), B::output(isRight ? first : own.first + count, count), tag);
    own = B::output(first, 2 * count);
  }
  recursion.sendToSecond();
  return std::move(builder).build();
}

}  // namespace agspeed::comm::schedule
