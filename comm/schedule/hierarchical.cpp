// SPDX-License-Identifier: Apache-2.0
// Algorithms for two levels of network: ranks of a host reach each other through memory, ranks of different hosts over
// network interfaces.
//
// The ranks form local groups of L, a power of two, that share a host (ScheduleRequest::localGroupSize). There are H
// groups, and rank h L + l is member l of group h. Data leaves a group only once, and not once for each of its ranks:
//
//   all-reduce      the members of a group reduce: member l gets part l of the buffer; members l of all groups reduce
//                   this part, each one a chunk of it, and gather it; the members of a group gather all parts
//   reduce-scatter  the members of a group reduce the chunks of all members l at member l; members l reduce these on
//   all-gather      members l of all groups gather their chunks; the members of a group exchange all they have
//
// Local groups are subtrees of the canonical tree (reduce_op.h): H = 2^k + e groups are paired like ranks. A group's
// partial results are wide, so 16-bit floats are sent once as f32. With L = 1 these are the direct algorithms.
// has reduced is wide, so 16-bit floats travel once as f32. With L = 1 these are the direct algorithms.
#include "comm/schedule/algorithms.h"

namespace agspeed::comm {

namespace {

using B = ScheduleBuilder;

/// A rank's position in its local group, and the members at the same position in other groups.
class TwoLevels {
 public:
  explicit TwoLevels(const ScheduleRequest& request)
      : groupSize(request.localGroupSize),
        numGroups(request.numRanks / groupSize),
        group(request.rank / groupSize),
        member(request.rank % groupSize) {}

  int rankOf(int ofGroup, int ofMember) const { return ofGroup * groupSize + ofMember; }
  /// Calls f(to, from) for all other members of the group, by distance, so that not all send to the same member first.
  template <typename F>
  void forOtherMembers(F f) const {
    for (int i = 1; i < groupSize; ++i) f((member + i) % groupSize, (member + groupSize - i) % groupSize);
  }
  /// Calls f(to, from) for all other groups.
  template <typename F>
  void forOtherGroups(F f) const {
    for (int i = 1; i < numGroups; ++i) f((group + i) % numGroups, (group + numGroups - i) % numGroups);
  }

  const int groupSize, numGroups, group, member;
};

uint32_t number(int value) { return static_cast<uint32_t>(value); }

/// Sends `give(m)` to every other member m of the group. Reduces what they send of chunk `own` with this rank's input,
/// into wide scratch.
template <typename Give>
ChunkRange reduceInGroup(B& builder, const TwoLevels& levels, const ChunkRange& own, uint32_t tag, Give give) {
  std::vector<ChunkRange> contributions(number(levels.groupSize), own);
  levels.forOtherMembers([&](int to, int from) {
    builder.send(levels.rankOf(levels.group, to), give(to), tag);
    contributions[number(from)] = builder.scratch(own);
    builder.receive(levels.rankOf(levels.group, from), contributions[number(from)], tag);
  });
  const ChunkRange partial = builder.wideScratch(own);
  builder.reducePartly(partial, contributions);
  return partial;
}

/// Sends `partialOf(b)` to this member of every other group b. Reduces what they send of `own` into `target`.
template <typename PartialOf>
void reduceAcrossGroups(B& builder, const TwoLevels& levels, const ChunkRange& own, const ChunkRange& target,
                        PartialOf partialOf) {
  std::vector<ChunkRange> partials(number(levels.numGroups), partialOf(levels.group));
  levels.forOtherGroups([&](int to, int from) {
    builder.send(levels.rankOf(to, levels.member), partialOf(to));
    partials[number(from)] = builder.wideScratch(own);
    builder.receive(levels.rankOf(from, levels.member), partials[number(from)]);
  });
  builder.reduceFinally(target, partials);
}

}  // namespace

Schedule hierarchicalAllReduce(const ScheduleRequest& request) {
  const TwoLevels levels(request);
  if (levels.groupSize == 1) return directAllReduce(request);
  B builder(request, number(request.numRanks));
  // Part m of the buffer: a chunk for member m of every group.
  const auto chunkOf = [&](int member, int group) { return number(member * levels.numGroups + group); };
  const auto partOf = [&](int member) { return B::input(chunkOf(member, 0), number(levels.numGroups)); };
  const ChunkRange partial = reduceInGroup(builder, levels, partOf(levels.member), 0, partOf);

  const uint32_t own = chunkOf(levels.member, levels.group);
  reduceAcrossGroups(builder, levels, B::input(own), B::output(own),
                     [&](int group) { return part(partial, chunkOf(levels.member, group), 1); });
  levels.forOtherGroups([&](int to, int from) {
    builder.send(levels.rankOf(to, levels.member), B::output(own), 1);
    builder.receive(levels.rankOf(from, levels.member), B::output(chunkOf(levels.member, from)), 1);
  });
  const auto resultOf = [&](int member) { return B::output(chunkOf(member, 0), number(levels.numGroups)); };
  levels.forOtherMembers([&](int to, int from) {
    builder.send(levels.rankOf(levels.group, to), resultOf(levels.member), 1);
    builder.receive(levels.rankOf(levels.group, from), resultOf(from), 1);
  });
  return std::move(builder).build();
}

Schedule hierarchicalReduceScatter(const ScheduleRequest& request) {
  const TwoLevels levels(request);
  if (levels.groupSize == 1) return directReduceScatter(request);
  B builder(request, number(request.numRanks));
  const auto chunkOf = [&](int group, int member) { return B::input(number(levels.rankOf(group, member))); };
  std::vector<ChunkRange> partials;
  for (int group = 0; group < levels.numGroups; ++group) {
    partials.push_back(reduceInGroup(builder, levels, chunkOf(group, levels.member), number(group),
                                     [&](int member) { return chunkOf(group, member); }));
  }
  const ChunkRange own = chunkOf(levels.group, levels.member);
  reduceAcrossGroups(builder, levels, own, B::output(own.first), [&](int group) { return partials[number(group)]; });
  return std::move(builder).build();
}

Schedule hierarchicalAllGather(const ScheduleRequest& request) {
  const TwoLevels levels(request);
  if (levels.groupSize == 1) return directAllGather(request);
  B builder(request, number(request.numRanks));
  const uint32_t own = number(request.rank);
  const auto outputOf = [&](int group, int member) { return B::output(number(levels.rankOf(group, member))); };
  levels.forOtherGroups([&](int to, int from) {
    builder.send(levels.rankOf(to, levels.member), B::input(own));
    builder.receive(levels.rankOf(from, levels.member), outputOf(from, levels.member));
  });
  for (int i = 0; i < levels.numGroups; ++i) {
    const int group = (levels.group + levels.numGroups - i) % levels.numGroups;  // in the order of arrival, this rank's
                                                                                 // own group first
    levels.forOtherMembers([&](int to, int from) {
      builder.send(levels.rankOf(levels.group, to), i == 0 ? B::input(own) : outputOf(group, levels.member),
                   number(group));
      builder.receive(levels.rankOf(levels.group, from), outputOf(group, from), number(group));
    });
  }
  builder.copy(B::output(own), B::input(own));
  return std::move(builder).build();
}

}  // namespace agspeed::comm
