// SPDX-License-Identifier: Apache-2.0
// Two levels of network: ranks of a host reach each other through memory, those of different hosts over its interfaces.
//
// The ranks are taken in blocks of L, a power of two, that share a host (ScheduleRequest::localGroupSize); H blocks,
// and rank h L + l is member l of block h. What leaves a block leaves it once, and not once for each of its ranks:
//
//   all-reduce      members of a block reduce: member l gets part l of the buffer; members l of all blocks reduce that
//                   part among them, each a chunk of it, and gather it; members of a block gather all parts
//   reduce-scatter  members of a block reduce what the members l of all blocks own at member l; these reduce on
//   all-gather      members l of all blocks gather their chunks; members of a block give each other what they have
//
// Blocks are subtrees of the canonical tree (reduce_op.h): H = 2^k + e blocks are paired like ranks. What a block has
// reduced is wide, so 16-bit floats travel once as f32. With L = 1 these are the direct algorithms.
#include "comm/schedule/algorithms.h"

namespace agspeed::comm {

namespace {

using B = ScheduleBuilder;

/// A rank's place, and who shares its block or its place in other blocks.
class Place2D {
 public:
  explicit Place2D(const ScheduleRequest& request)
      : numMembers(request.localGroupSize),
        numBlocks(request.numRanks / numMembers),
        block(request.rank / numMembers),
        member(request.rank % numMembers) {}

  int rankOf(int ofBlock, int ofMember) const { return ofBlock * numMembers + ofMember; }
  /// f(to, from) for all other members of the block, by distance, so that none is everybody's first.
  template <typename F>
  void forOtherMembers(F f) const {
    for (int i = 1; i < numMembers; ++i) f((member + i) % numMembers, (member + numMembers - i) % numMembers);
  }
  /// f(to, from) for all other blocks.
  template <typename F>
  void forOtherBlocks(F f) const {
    for (int i = 1; i < numBlocks; ++i) f((block + i) % numBlocks, (block + numBlocks - i) % numBlocks);
  }

  const int numMembers, numBlocks, block, member;
};

uint32_t number(int value) { return static_cast<uint32_t>(value); }

/// Sends `give(m)` to every other member m of the block and reduces what they send of `own` with it, into wide scratch.
template <typename Give>
ChunkRange reduceInBlock(B& builder, const Place2D& place, const ChunkRange& own, uint32_t tag, Give give) {
  std::vector<ChunkRange> contributions(number(place.numMembers), own);
  place.forOtherMembers([&](int to, int from) {
    builder.send(place.rankOf(place.block, to), give(to), tag);
    contributions[number(from)] = builder.scratch(own);
    builder.receive(place.rankOf(place.block, from), contributions[number(from)], tag);
  });
  const ChunkRange partial = builder.wideScratch(own);
  builder.reducePartly(partial, contributions);
  return partial;
}

/// Sends `partialOf(b)` to this member of every other block b and reduces what they send of `own` into `target`.
template <typename PartialOf>
void reduceAcrossBlocks(B& builder, const Place2D& place, const ChunkRange& own, const ChunkRange& target,
                        PartialOf partialOf) {
  std::vector<ChunkRange> partials(number(place.numBlocks), partialOf(place.block));
  place.forOtherBlocks([&](int to, int from) {
    builder.send(place.rankOf(to, place.member), partialOf(to));
    partials[number(from)] = builder.wideScratch(own);
    builder.receive(place.rankOf(from, place.member), partials[number(from)]);
  });
  builder.reduceFinally(target, partials);
}

}  // namespace

Schedule hierarchicalAllReduce(const ScheduleRequest& request) {
  const Place2D place(request);
  if (place.numMembers == 1) return directAllReduce(request);
  B builder(request, number(request.numRanks));
  // Part m of the buffer: a chunk for member m of every block.
  const auto chunkOf = [&](int member, int block) { return number(member * place.numBlocks + block); };
  const auto partOf = [&](int member) { return B::input(chunkOf(member, 0), number(place.numBlocks)); };
  const ChunkRange partial = reduceInBlock(builder, place, partOf(place.member), 0, partOf);

  const uint32_t own = chunkOf(place.member, place.block);
  reduceAcrossBlocks(builder, place, B::input(own), B::output(own),
                     [&](int block) { return part(partial, chunkOf(place.member, block), 1); });
  place.forOtherBlocks([&](int to, int from) {
    builder.send(place.rankOf(to, place.member), B::output(own), 1);
    builder.receive(place.rankOf(from, place.member), B::output(chunkOf(place.member, from)), 1);
  });
  const auto resultOf = [&](int member) { return B::output(chunkOf(member, 0), number(place.numBlocks)); };
  place.forOtherMembers([&](int to, int from) {
    builder.send(place.rankOf(place.block, to), resultOf(place.member), 1);
    builder.receive(place.rankOf(place.block, from), resultOf(from), 1);
  });
  return std::move(builder).build();
}

Schedule hierarchicalReduceScatter(const ScheduleRequest& request) {
  const Place2D place(request);
  if (place.numMembers == 1) return directReduceScatter(request);
  B builder(request, number(request.numRanks));
  const auto chunkOf = [&](int block, int member) { return B::input(number(place.rankOf(block, member))); };
  std::vector<ChunkRange> partials;
  for (int block = 0; block < place.numBlocks; ++block) {
    partials.push_back(reduceInBlock(builder, place, chunkOf(block, place.member), number(block),
                                     [&](int member) { return chunkOf(block, member); }));
  }
  const ChunkRange own = chunkOf(place.block, place.member);
  reduceAcrossBlocks(builder, place, own, B::output(own.first), [&](int block) { return partials[number(block)]; });
  return std::move(builder).build();
}

Schedule hierarchicalAllGather(const ScheduleRequest& request) {
  const Place2D place(request);
  if (place.numMembers == 1) return directAllGather(request);
  B builder(request, number(request.numRanks));
  const uint32_t own = number(request.rank);
  const auto outputOf = [&](int block, int member) { return B::output(number(place.rankOf(block, member))); };
  place.forOtherBlocks([&](int to, int from) {
    builder.send(place.rankOf(to, place.member), B::input(own));
    builder.receive(place.rankOf(from, place.member), outputOf(from, place.member));
  });
  for (int i = 0; i < place.numBlocks; ++i) {
    const int block = (place.block + place.numBlocks - i) % place.numBlocks;  // as they arrive, the own one first
    place.forOtherMembers([&](int to, int from) {
      builder.send(place.rankOf(place.block, to), i == 0 ? B::input(own) : outputOf(block, place.member),
                   number(block));
      builder.receive(place.rankOf(place.block, from), outputOf(block, from), number(block));
    });
  }
  builder.copy(B::output(own), B::input(own));
  return std::move(builder).build();
}

}  // namespace agspeed::comm
