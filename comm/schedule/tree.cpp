// SPDX-License-Identifier: Apache-2.0
// Trees: broadcasts and reductions of short buffers in log2 p rounds, and the double tree for long broadcasts.
//
//   binomial broadcast  The root sends to the rank that is half of all ranks away. Then each of the two ranks is the
//                       root of one half, and continues in the same way.
//   binomial reduce     Every merge of the canonical tree is computed at the root if the root is in one of the two
//                       halves, otherwise at a rank of the left half.
//   double tree         Each of two trees carries half of the buffer, and no rank has children in both trees. Every
//                       rank sends and receives about the whole buffer once, so a pipelined broadcast uses the full
//                       bandwidth.
#include <bit>

#include "comm/reduce/reduce_op.h"
#include "comm/schedule/algorithms.h"

namespace agspeed::comm::schedule {

namespace {

using B = ScheduleBuilder;

/// Makes the steps of a reduction along the canonical tree (reduce_op.h). Every rank walks the whole tree, and adds
/// only its own steps.
class BinomialReduction {
 public:
  explicit BinomialReduction(const ScheduleRequest& request)
      : builder_(request, 1), request_(request), tree_(request.numRanks) {}

  Schedule build() {
    if (request_.numRanks == 1) {
      builder_.reduceFinally(B::output(0), {B::input(0)});
    } else {
      reducePositions(0, tree_.numPositions);
    }
    return std::move(builder_).build();
  }

 private:
  /// A partial result: the rank that holds it, and its range in this rank's memory if this rank is the holder.
  struct Value {
    int holder;
    bool isWide;
    ChunkRange here;
  };

  Value reducePositions(int first, int count) {
    if (count > 1) {
      const Value left = reducePositions(first, count / 2);
      return merge(left, reducePositions(first + count / 2, count / 2), count == tree_.numPositions);
    }
    const int leaf = tree_.firstLeaf(first);
    const Value own{leaf, false, B::input(0)};
    if (!tree_.isPair(first)) return own;
    return merge(own, {leaf + 1, false, B::input(0)}, false);
  }

  Value merge(Value left, Value right, bool isFinal) {
    const bool isRight = right.holder == request_.root;
    Value& kept = isRight ? right : left;
    Value& given = isRight ? left : right;
    const auto tag = static_cast<uint32_t>(given.holder);  // unique, because a rank sends away its value only once
    if (request_.rank == given.holder) builder_.send(kept.holder, given.here, tag);
    if (request_.rank == kept.holder) {
      given.here = given.isWide ? builder_.wideScratch(B::input(0)) : builder_.scratch(B::input(0));
      builder_.receive(given.holder, given.here, tag);
      const std::vector<ChunkRange> sources = {left.here, right.here};
      kept.here = isFinal ? B::output(0) : builder_.wideScratch(B::input(0));
      isFinal ? builder_.reduceFinally(kept.here, sources) : builder_.reducePartly(kept.here, sources);
    }
    return {kept.holder, true, kept.here};
  }

  B builder_;
  const ScheduleRequest request_;
  const reduce::CanonicalTree tree_;
};

/// Returns the parent of `node` in a tree over 0 .. numNodes - 1 whose root is 0, and in which odd nodes have no
/// children. The lowest set bit of a node is its height. If the parent would be beyond the last node, the function
/// returns the nearest ancestor that exists. Requires: `node` >= 1.
int treeParent(int node, int numNodes) {
  const int height = node & -node;
  const int parent = (node ^ height) | (height << 1);
  return parent < numNodes ? parent : node ^ height;
}

/// Returns the number that `node` of the first tree has in the second tree. No node has children in both trees: each
/// even node gets an odd number in the second tree, and nodes with odd numbers have no children. For an odd number of
/// nodes, this function mirrors the numbers: n becomes numNodes - n. For an even number of nodes, it adds 1, and the
/// last node becomes 1. The root stays 0.
int inSecondTree(int node, int numNodes) {
  if (node == 0) return 0;
  return numNodes % 2 ? numNodes - node : node % (numNodes - 1) + 1;
}

}  // namespace

Schedule binomialReduce(const ScheduleRequest& request) { return BinomialReduction(request).build(); }

Schedule binomialBroadcast(const ScheduleRequest& request) {
  B builder(request, 1);
  const int size = request.numRanks;
  const int node = (request.rank + size - request.root) % size;
  const auto rankOf = [&](int other) { return (other + request.root) % size; };
  const auto span = static_cast<int>(std::bit_ceil(static_cast<unsigned>(size)));
  const int height = node == 0 ? span : node & -node;
  const ChunkRange whole = node == 0 ? B::input(0) : B::output(0);
  if (node != 0) builder.receive(rankOf(node ^ height), whole);
  for (int distance = height / 2; distance > 0; distance /= 2) {
    if (node + distance < size) builder.send(rankOf(node + distance), whole);
  }
  if (node == 0) builder.copy(B::output(0), whole);
  return std::move(builder).build();
}

Schedule doubleTreeBroadcast(const ScheduleRequest& request) {
  B builder(request, 2);
  const int size = request.numRanks;
  const int node = (request.rank + size - request.root) % size;
  for (const uint32_t half : {0u, 1u}) {
    const auto numberOf = [&](int other) { return half == 0 ? other : inSecondTree(other, size); };
    const ChunkRange bytes = node == 0 ? B::input(half) : B::output(half);
    for (int parent = 0; node != 0 && parent < size; ++parent) {
      if (numberOf(parent) != treeParent(numberOf(node), size)) continue;
      builder.receive((parent + request.root) % size, bytes, half);
    }
    for (int child = 1; child < size; ++child) {
      if (treeParent(numberOf(child), size) != numberOf(node)) continue;
      builder.send((child + request.root) % size, bytes, half);
    }
  }
  if (node == 0) builder.copy(B::output(0, 2), B::input(0, 2));
  return std::move(builder).build();
}

}  // namespace agspeed::comm::schedule
