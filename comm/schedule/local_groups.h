// SPDX-License-Identifier: Apache-2.0
// LocalGroups: which ranks share a host, and how they divide the work of a two-level collective.
//
// A local group is a run of consecutive ranks that share a host. Groups may have any sizes. In a collective, each rank
// owns one chunk. For each chunk, every group has one member that works on it: its worker. In the owner's group, the
// worker is the owner. In another group, the chunks of the owners are divided evenly among the members. Immutable.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace agspeed::comm::schedule {

/// The ranks first .. first + count - 1.
struct RankRange {
  int first = 0;
  int count = 0;
  bool operator==(const RankRange&) const = default;
};

class LocalGroups {
 public:
  /// `firstRanks`: the first rank of each group, in ascending order, beginning with 0. Empty: each rank is a group of
  /// its own.
  LocalGroups(int numRanks, std::span<const int> firstRanks);

  int numRanks() const { return static_cast<int>(groupOf_.size()); }
  int numGroups() const { return static_cast<int>(groups_.size()); }
  RankRange ranks(int group) const { return groups_[static_cast<size_t>(group)].ranks; }
  int groupOf(int rank) const { return groupOf_[static_cast<size_t>(rank)]; }

  /// Returns the largest subtrees of the canonical tree (reduce_op.h) whose ranks all belong to the group, in rank
  /// order. The group makes one partial result per subtree. Example: with 12 ranks on 2 hosts, ranks 0 to 5 have the
  /// subtrees 0 to 3 and 4 to 5.
  std::span<const RankRange> subtrees(int group) const { return groups_[static_cast<size_t>(group)].subtrees; }

  /// Returns the rank of `group` that works on the chunk of `owner`.
  int workerOf(int owner, int group) const;
  /// Returns the ranks of `group` on whose chunks `worker` works.
  RankRange ownersOf(int worker, int group) const;

  /// Returns the number of the chunk of `owner` in an all-reduce. Chunks are numbered so that all chunks of a worker
  /// follow each other.
  uint32_t chunkOf(int owner) const;
  /// Returns the number of the first chunk of `worker` in an all-reduce.
  uint32_t firstChunkOf(int worker) const;
  /// Returns the number of chunks on which `worker` works.
  uint32_t numChunksOf(int worker) const;

 private:
  struct Group {
    RankRange ranks;
    std::vector<RankRange> subtrees;
  };

  void addSubtrees(int numRanks);

  std::vector<Group> groups_;
  std::vector<int> groupOf_;  ///< by rank
};

}  // namespace agspeed::comm::schedule
