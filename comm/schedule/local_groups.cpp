// SPDX-License-Identifier: Apache-2.0
#include "comm/schedule/local_groups.h"

#include "comm/reduce/reduce_op.h"

namespace agspeed::comm::schedule {

namespace {

int divideUp(int dividend, int divisor) { return (dividend + divisor - 1) / divisor; }

}  // namespace

LocalGroups::LocalGroups(int numRanks, std::span<const int> firstRanks) {
  size_t next = 0;
  for (int rank = 0; rank < numRanks; ++rank) {
    const bool isFirst = firstRanks.empty() || (next < firstRanks.size() && firstRanks[next] == rank);
    if (isFirst) {
      groups_.push_back({{rank, 0}, {}});
      ++next;
    }
    ++groups_.back().ranks.count;
    groupOf_.push_back(numGroups() - 1);
  }
  addSubtrees(numRanks);
}

void LocalGroups::addSubtrees(int numRanks) {
  const reduce::CanonicalTree tree(numRanks);
  const auto add = [&](RankRange ranks) {
    groups_[static_cast<size_t>(groupOf(ranks.first))].subtrees.push_back(ranks);
  };
  const auto visit = [&](auto& self, int position, int count) -> void {
    const int first = tree.firstLeaf(position);
    const int end = position + count == tree.numPositions ? numRanks : tree.firstLeaf(position + count);
    if (groupOf(first) == groupOf(end - 1)) return add({first, end - first});
    if (count > 1) {
      self(self, position, count / 2);
      self(self, position + count / 2, count / 2);
    } else {
      add({first, 1});
      add({first + 1, 1});
    }
  };
  visit(visit, 0, tree.numPositions);
}

int LocalGroups::workerOf(int owner, int group) const {
  const RankRange owners = ranks(groupOf(owner)), workers = ranks(group);
  return workers.first + (owner - owners.first) * workers.count / owners.count;
}

RankRange LocalGroups::ownersOf(int worker, int group) const {
  const RankRange owners = ranks(group), workers = ranks(groupOf(worker));
  const int member = worker - workers.first;
  const int first = divideUp(member * owners.count, workers.count);
  return {owners.first + first, divideUp((member + 1) * owners.count, workers.count) - first};
}

uint32_t LocalGroups::chunkOf(int owner) const {
  // The chunks are ordered by place / size, where `place` is the owner's index in its group and `size` the group's
  // size. Chunks with equal ratios are ordered by group.
  const int group = groupOf(owner);
  const RankRange own = ranks(group);
  const int place = owner - own.first;
  int chunk = 0;
  for (int other = 0; other < numGroups(); ++other) {
    const int size = ranks(other).count;
    chunk += divideUp(place * size, own.count) + (other < group && place * size % own.count == 0 ? 1 : 0);
  }
  return static_cast<uint32_t>(chunk);
}

uint32_t LocalGroups::firstChunkOf(int worker) const {
  const RankRange own = ranks(groupOf(worker));
  int chunk = 0;
  for (int group = 0; group < numGroups(); ++group) {
    chunk += divideUp((worker - own.first) * ranks(group).count, own.count);
  }
  return static_cast<uint32_t>(chunk);
}

uint32_t LocalGroups::numChunksOf(int worker) const {
  int count = 0;
  for (int group = 0; group < numGroups(); ++group) count += ownersOf(worker, group).count;
  return static_cast<uint32_t>(count);
}

}  // namespace agspeed::comm::schedule
