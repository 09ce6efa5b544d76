// SPDX-License-Identifier: Apache-2.0
// Hierarchical algorithms: for networks of two levels. Ranks of a host reach each other through memory, ranks of
// different hosts over network interfaces.
//
// The ranks form local groups of any sizes (local_groups.h). Each rank owns a chunk. For each chunk, every group has
// one member that works on it: its worker. Data leaves a group only once, and not once for each rank of the group:
//
//   all-reduce      1. In each group, every member reduces the group's contributions to the chunks that it works on.
//                   2. The workers send these partial results to the owners of the chunks. An owner reduces the partial
//                      results of all groups, and sends the result to the workers of the chunk.
//                   3. In each group, the members gather all chunks.
//   reduce-scatter  the first step, and the first half of the second
//   all-gather      1. Every rank sends its chunk to the workers of the chunk.
//                   2. In each group, the members exchange all chunks that they have.
//
// A group makes one partial result for each of its subtrees of the canonical tree (reduce_op.h). With 8 + 7 ranks on
// two hosts, this is one per host; with 6 + 6 ranks, two. The partial results of several ranks have the accumulator
// type (they are "wide"). So these messages carry 16-bit floats as f32. If each rank is a group of its own, these are
// the direct algorithms.
//
// The variants "hierarchical-rounded" round each partial result of a group to the type of the data. Their messages
// carry 16-bit floats as they are, with half of the bytes, but a sum is rounded twice. Results of other types are
// bitwise the same.
#include <algorithm>

#include "comm/reduce/reduce_op.h"
#include "comm/schedule/algorithms.h"
#include "comm/schedule/local_groups.h"

namespace agspeed::comm::schedule {

namespace {

using B = ScheduleBuilder;

uint32_t number(int value) { return static_cast<uint32_t>(value); }

/// A rank's view of the local groups. It iterates over the other members of the rank's group, and over the other
/// groups.
class TwoLevels {
 public:
  TwoLevels(const ScheduleRequest& request, bool roundsPartials)
      : groups(request.numRanks, request.localGroups),
        rank(request.rank),
        group(groups.groupOf(rank)),
        roundsPartials_(roundsPartials) {}

  /// Calls f(to, from) for all other members of this rank's group. The order is by distance from this rank, so that not
  /// all members send to the same member first.
  template <typename F>
  void forOtherMembers(F f) const {
    const auto [first, size] = groups.ranks(group);
    const int member = rank - first;
    for (int i = 1; i < size; ++i) f(first + (member + i) % size, first + (member + size - i) % size);
  }
  /// Calls f(to, from) for all other groups, in the order of their distance.
  template <typename F>
  void forOtherGroups(F f) const {
    const int size = groups.numGroups();
    for (int i = 1; i < size; ++i) f((group + i) % size, (group + size - i) % size);
  }
  /// Calls f(owner) for the ranks of `ofGroup` on whose chunks `worker` works.
  template <typename F>
  void forOwners(int worker, int ofGroup, F f) const {
    const auto [first, count] = groups.ownersOf(worker, ofGroup);
    for (int owner = first; owner < first + count; ++owner) f(owner);
  }

  /// Adds scratch memory for a partial result: the chunks `own`, reduced over `ranks`. It is wide if a reduction of
  /// several ranks is not rounded.
  ChunkRange partialOf(B& builder, const ChunkRange& own, const RankRange& ranks) const {
    return ranks.count == 1 || roundsPartials_ ? builder.scratch(own) : builder.wideScratch(own);
  }

  const LocalGroups groups;
  const int rank, group;

 private:
  const bool roundsPartials_;
};

/// A range of the input that is reduced in the group, and the tag of its messages.
struct Task {
  ChunkRange range;
  uint32_t tag = 0;
};

/// Adds the steps that reduce within the group. This rank sends the ranges `tasksOf(m)` to every other member m. It
/// receives the contributions of all other members to its own tasks, and reduces them together with its own
/// contribution. Returns for each of these tasks: a partial result per subtree of the group.
template <typename TasksOf>
std::vector<std::vector<ChunkRange>> reduceInGroup(B& builder, const TwoLevels& levels, TasksOf tasksOf) {
  const auto [first, size] = levels.groups.ranks(levels.group);
  const std::vector<Task> own = tasksOf(levels.rank);
  std::vector<std::vector<ChunkRange>> contributions;
  for (const Task& task : own) contributions.emplace_back(number(size), task.range);
  levels.forOtherMembers([&, first = first](int to, int from) {
    for (const Task& task : tasksOf(to)) builder.send(to, task.range, task.tag);
    for (size_t i = 0; i < own.size(); ++i) {
      contributions[i][number(from - first)] = builder.scratch(own[i].range);
      builder.receive(from, contributions[i][number(from - first)], own[i].tag);
    }
  });
  std::vector<std::vector<ChunkRange>> partials(own.size());
  for (size_t i = 0; i < own.size(); ++i) {
    for (const RankRange& ranks : levels.groups.subtrees(levels.group)) {
      const auto begin = contributions[i].begin() + (ranks.first - first);
      if (ranks.count == 1) {
        partials[i].push_back(*begin);
      } else {
        partials[i].push_back(levels.partialOf(builder, own[i].range, ranks));
        builder.reducePartly(partials[i].back(), {begin, begin + ranks.count});
      }
    }
  }
  return partials;
}

/// Adds the steps that join the partial results of all groups in the canonical order.
class Joining {
 public:
  Joining(B& builder, const TwoLevels& levels, const ChunkRange& own) : builder_(builder), levels_(levels), own_(own) {}

  /// Reduces `partials`, the partial results of all subtrees in rank order, to the final value in `target`.
  void run(const ChunkRange& target, const std::vector<ChunkRange>& partials, int numRanks) {
    next_ = partials.begin();
    const reduce::CanonicalTree tree(numRanks);
    builder_.reduceFinally(target, join(tree, numRanks, 0, tree.numPositions));
  }

 private:
  using Sources = std::vector<ChunkRange>;

  /// Returns the sources whose reduction in the canonical order gives the value of the `count` positions of the tree
  /// from `position`.
  Sources join(const reduce::CanonicalTree& tree, int numRanks, int position, int count) {
    const int first = tree.firstLeaf(position);
    const int end = position + count == tree.numPositions ? numRanks : tree.firstLeaf(position + count);
    if (levels_.groups.groupOf(first) == levels_.groups.groupOf(end - 1)) return {*next_++};
    if (count == 1) {
      const ChunkRange left = *next_++;
      return {left, *next_++};
    }
    Sources left = join(tree, numRanks, position, count / 2);
    Sources right = join(tree, numRanks, position + count / 2, count / 2);
    if (!isFoldOf(left.size(), right.size())) {
      left = {reduced(left)};
      right = {reduced(right)};
    }
    left.insert(left.end(), right.begin(), right.end());
    return left;
  }

  /// Whether a reduction of left + right sources in the canonical order first reduces the `left` sources and the
  /// `right` sources, and then merges both results.
  static bool isFoldOf(size_t left, size_t right) {
    const reduce::CanonicalTree tree(static_cast<int>(left + right));
    return tree.firstLeaf(tree.numPositions / 2) == static_cast<int>(left);
  }

  /// Returns the reduction of the sources. Adds a step for it if there are several sources.
  ChunkRange reduced(const Sources& sources) {
    if (sources.size() == 1) return sources[0];
    const ChunkRange target = builder_.wideScratch(own_);
    builder_.reducePartly(target, sources);
    return target;
  }

  B& builder_;
  const TwoLevels& levels_;
  const ChunkRange own_;
  Sources::const_iterator next_;
};

/// Adds the steps that reduce across groups. This rank sends `partials(owner)` to each owner in another group for which
/// it is the worker. It receives the partial results of its `own` chunk from all other groups, and reduces all partial
/// results into `target`.
template <typename Partials>
void reduceAcrossGroups(B& builder, const TwoLevels& levels, const ChunkRange& own, const ChunkRange& target,
                        Partials partials) {
  const LocalGroups& groups = levels.groups;
  std::vector<std::vector<ChunkRange>> ofGroups(number(groups.numGroups()));
  ofGroups[number(levels.group)] = partials(levels.rank);
  levels.forOtherGroups([&](int to, int from) {
    levels.forOwners(levels.rank, to, [&](int owner) {
      uint32_t tag = 0;
      for (const ChunkRange& partial : partials(owner)) builder.send(owner, partial, tag++);
    });
    for (const RankRange& ranks : groups.subtrees(from)) {
      auto& received = ofGroups[number(from)];
      received.push_back(levels.partialOf(builder, own, ranks));
      builder.receive(groups.workerOf(levels.rank, from), received.back(), static_cast<uint32_t>(received.size() - 1));
    }
  });
  std::vector<ChunkRange> all;
  for (const auto& each : ofGroups) all.insert(all.end(), each.begin(), each.end());
  const auto [first, count] = groups.ranks(groups.numGroups() - 1);
  Joining(builder, levels, own).run(target, all, first + count);
}

Schedule allReduce(const ScheduleRequest& request, bool roundsPartials) {
  const TwoLevels levels(request, roundsPartials);
  const LocalGroups& groups = levels.groups;
  if (groups.numGroups() == request.numRanks) return directAllReduce(request);
  B builder(request, number(request.numRanks));
  const auto partOf = [&](int worker) { return B::input(groups.firstChunkOf(worker), groups.numChunksOf(worker)); };
  const std::vector<ChunkRange> partials =
      reduceInGroup(builder, levels, [&](int worker) { return std::vector<Task>{{partOf(worker)}}; })[0];

  const uint32_t own = groups.chunkOf(request.rank);
  reduceAcrossGroups(builder, levels, B::input(own), B::output(own), [&](int owner) {
    std::vector<ChunkRange> ofOwner;
    for (const ChunkRange& partial : partials) ofOwner.push_back(part(partial, groups.chunkOf(owner), 1));
    return ofOwner;
  });
  // The sender uses one tag per subtree for its partial results, from 0. So the number of its subtrees is a free tag.
  const auto resultTag = [&](int sender) {
    return static_cast<uint32_t>(groups.subtrees(groups.groupOf(sender)).size());
  };
  levels.forOtherGroups([&](int to, int from) {
    builder.send(groups.workerOf(request.rank, to), B::output(own), resultTag(request.rank));
    levels.forOwners(request.rank, from,
                     [&](int owner) { builder.receive(owner, B::output(groups.chunkOf(owner)), resultTag(owner)); });
  });
  const auto resultOf = [&](int worker) { return B::output(groups.firstChunkOf(worker), groups.numChunksOf(worker)); };
  levels.forOtherMembers([&](int to, int from) {
    builder.send(to, resultOf(request.rank), 1);
    builder.receive(from, resultOf(from), 1);
  });
  return std::move(builder).build();
}

Schedule reduceScatter(const ScheduleRequest& request, bool roundsPartials) {
  const TwoLevels levels(request, roundsPartials);
  const LocalGroups& groups = levels.groups;
  if (groups.numGroups() == request.numRanks) return directReduceScatter(request);
  B builder(request, number(request.numRanks));
  const auto ownersOf = [&](int worker) {
    std::vector<int> owners;
    for (int group = 0; group < groups.numGroups(); ++group) {
      levels.forOwners(worker, group, [&](int owner) { owners.push_back(owner); });
    }
    return owners;
  };
  const auto partials = reduceInGroup(builder, levels, [&](int worker) {
    std::vector<Task> tasks;
    for (const int owner : ownersOf(worker)) tasks.push_back({B::input(number(owner)), number(owner)});
    return tasks;
  });
  const std::vector<int> owners = ownersOf(request.rank);
  const ChunkRange own = B::input(number(request.rank));
  reduceAcrossGroups(builder, levels, own, B::output(own.first), [&](int owner) {
    return partials[static_cast<size_t>(std::find(owners.begin(), owners.end(), owner) - owners.begin())];
  });
  return std::move(builder).build();
}

}  // namespace

Schedule hierarchicalAllReduce(const ScheduleRequest& request) { return allReduce(request, false); }
Schedule roundedHierarchicalAllReduce(const ScheduleRequest& request) { return allReduce(request, true); }
Schedule hierarchicalReduceScatter(const ScheduleRequest& request) { return reduceScatter(request, false); }
Schedule roundedHierarchicalReduceScatter(const ScheduleRequest& request) { return reduceScatter(request, true); }

Schedule hierarchicalAllGather(const ScheduleRequest& request) {
  const TwoLevels levels(request, false);
  const LocalGroups& groups = levels.groups;
  if (groups.numGroups() == request.numRanks) return directAllGather(request);
  B builder(request, number(request.numRanks));
  const uint32_t own = number(request.rank);
  levels.forOtherGroups([&](int to, int from) {
    builder.send(groups.workerOf(request.rank, to), B::input(own));
    levels.forOwners(request.rank, from, [&](int owner) { builder.receive(owner, B::output(number(owner))); });
  });
  for (int i = 0; i < groups.numGroups(); ++i) {
    // Visit the groups in the order in which their chunks arrive, beginning with this rank's own group.
    const int group = (levels.group + groups.numGroups() - i) % groups.numGroups();
    levels.forOtherMembers([&](int to, int from) {
      levels.forOwners(request.rank, group, [&](int owner) {
        builder.send(to, i == 0 ? B::input(own) : B::output(number(owner)), number(owner));
      });
      levels.forOwners(from, group, [&](int owner) { builder.receive(from, B::output(number(owner)), number(owner)); });
    });
  }
  builder.copy(B::output(own), B::input(own));
  return std::move(builder).build();
}

}  // namespace agspeed::comm::schedule
