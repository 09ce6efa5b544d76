// SPDX-License-Identifier: Apache-2.0
// ScheduleBuilder: makes schedules. An algorithm states the steps of one rank as a sequential program, and the builder
// derives which steps may run at the same time.
//
// Two steps keep their order exactly if both access the same memory and at least one of them writes it. All other steps
// may run at the same time. Algorithms therefore have no data races, and their authors need not think about
// concurrency.
#pragma once

#include <vector>

#include "comm/schedule/schedule.h"

namespace agspeed::comm::schedule {

/// The parameters of a schedule.
struct ScheduleRequest {
  Collective collective = Collective::kAllReduce;
  int rank = 0;
  int numRanks = 1;
  int root = 0;  ///< rank of the root, for collectives with a root
  /// The first rank of each local group, for hierarchical algorithms; see LocalGroups. Empty: no ranks share a host.
  std::vector<int> localGroups = {};
};

class ScheduleBuilder {
 public:
  ScheduleBuilder(const ScheduleRequest& request, uint32_t numChunks);

  static ChunkRange input(uint32_t first, uint32_t count = 1) { return {BufferKind::kInput, 0, first, count}; }
  static ChunkRange output(uint32_t first, uint32_t count = 1) { return {BufferKind::kOutput, 0, first, count}; }
  /// Adds scratch memory as large as `like`, and returns its range.
  ChunkRange scratch(const ChunkRange& like);
  /// Adds scratch memory for partial results of `like`, which are wide, and returns its range.
  ChunkRange wideScratch(const ChunkRange& like);
  bool isWide(const ChunkRange& range) const { return schedule_.isWide(range); }

  void send(int peer, const ChunkRange& range, uint32_t tag = 0);
  void receive(int peer, const ChunkRange& range, uint32_t tag = 0);
  void copy(const ChunkRange& target, const ChunkRange& source);
  /// Reduces `sources` to a partial result. The result is rounded if `target` is not wide. Only algorithms with
  /// Order::kAnyOrder may round it.
  void reducePartly(const ChunkRange& target, std::vector<ChunkRange> sources);
  /// Reduces `sources`, which cover all ranks' contributions, to the final value. Requires: `target` is not wide.
  void reduceFinally(const ChunkRange& target, std::vector<ChunkRange> sources);

  /// Returns the schedule with its dependencies, and consumes the builder.
  Schedule build() &&;

 private:
  Step& add(StepKind kind, const ChunkRange& range);

  Schedule schedule_;
};

/// Returns the chunks first .. first + count - 1 of the buffer of `range`.
ChunkRange part(const ChunkRange& range, uint32_t first, uint32_t count);

}  // namespace agspeed::comm::schedule
