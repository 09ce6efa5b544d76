// SPDX-License-Identifier: Apache-2.0
// Hierarchical algorithms: for networks of two levels. Ranks of a host reach each other through memory, ranks of
// different hosts over network interfaces.
//
// The ranks form local groups of L ranks that share a host, where L is a power of two
// (ScheduleRequest::localGroupSize). There are H groups, and rank h L + l is member l of group h. Data leaves a group
// only once, and not once for each of its ranks:
//
//   all-reduce      1. In each group, member l reduces the group's contributions to part l of the buffer.
//                   2. The members l of all groups reduce part l, one chunk of it each, and gather these chunks.
//                   3. In each group, the members gather all parts.
//   reduce-scatter  1. In each group, member l reduces the group's contributions to the chunks of the members l of all
//                      groups.
//                   2. The members l of all groups exchange these partial results. Each one reduces its own chunk.
//   all-gather      1. The members l of all groups gather their chunks.
//                   2. In each group, the members exchange all chunks that they have.
//
// Local groups are subtrees of the canonical tree (reduce_op.h), in which H groups are paired as H ranks would be. The
// partial results of a group have the accumulator type (they are "wide"). So the messages between groups carry 16-bit
// floats as f32. With L = 1 these are the direct algorithms.
#include "comm/schedule/algorithms.h"

namespace agspeed::comm::schedule {

namespace {

using B = ScheduleBuilder;

/// The position of a rank in its local group. Visits the other members of the group, and the same member of other
/// groups.
class TwoLevels {
 public:
  explicit TwoLevels(const ScheduleRequest& request)
      : groupSize(request.localGroupSize),
        numGroups(request.numRanks / groupSize),
        group(request.rank / groupSize),
        member(request.rank % groupSize) {}

  int rankOf(int ofGroup, int ofMember) const { return ofGroup * groupSize + ofMember; }
  /// Calls f(to, from) for all other members of this rank's group. It goes by distance, so that not all members send to
  /// the same member first.
  template <typename F>
  void forOtherMembers(F f) const {
    for (int i = 1; i < groupSize; ++i) f((member + i) % groupSize, (member + groupSize - i) % groupSize);
  }
  /// Calls f(to, from) for all other groups, by distance.
  template <typename F>
  void forOtherGroups(F f) const {
    for (int i = 1; i < numGroups; ++i) f((group + i) % numGroups, (group + numGroups - i) % numGroups);
  }

  const int groupSize, numGroups, group, member;
};

uint32_t number(int value) { return static_cast<uint32_t>(value); }

/// Adds the steps that reduce within the group: sends `give(m)` to every other member m, receives the contributions of
/// all other members to `own`, and reduces them together with this rank's contribution. Returns: the partial result, in
/// wide scratch memory.
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

/// Adds the steps that reduce across groups: sends `partialOf(g)` to the same member of every other group g, receives
/// the partial results of `own` from these members, and reduces them together with this group's into `target`.
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
  // Part m of the buffer consists of one chunk for each group's member m.
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
    // The groups in the order in which their chunks arrive, this rank's own group first.
    const int group = (levels.group + levels.numGroups - i) % levels.numGroups;
    levels.forOtherMembers([&](int to, int from) {
      builder.send(levels.rankOf(levels.group, to), i == 0 ? B::input(own) : outputOf(group, levels.member),
                   number(group));
      builder.receive(levels.rankOf(levels.group, from), outputOf(group, from), number(group));
    });
  }
  builder.copy(B::output(own), B::input(own));
  return std::move(builder).build();
}

}  // namespace agspeed::comm::schedule
