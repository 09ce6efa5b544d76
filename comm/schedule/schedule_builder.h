// SPDX-License-Identifier: Apache-2.0
// Writes schedules. An algorithm states one rank's steps as a plain sequential program, and the builder finds out which
// of them may run at the same time.
//
// Two steps keep their order exactly if both touch the same memory and one of them writes it. All other steps may run
// at the same time. An algorithm therefore cannot race, and its author need not think about overlap.
#pragma once

#include <vector>

#include "comm/schedule/schedule.h"

namespace agspeed::comm {

/// The parameters of a schedule.
struct ScheduleRequest {
  Collective collective = Collective::kAllReduce;
  int rank = 0;
  int numRanks = 1;
  int root = 0;  ///< for collectives with a root
  /// Ranks i * localGroupSize to (i + 1) * localGroupSize - 1 share a host, for every i. It is a power of two that
  /// divides numRanks.
  int localGroupSize = 1;
};

class ScheduleBuilder {
 public:
  ScheduleBuilder(const ScheduleRequest& request, uint32_t numChunks);

  static ChunkRange input(uint32_t first, uint32_t count = 1) { return {BufferKind::kInput, 0, first, count}; }
  static ChunkRange output(uint32_t first, uint32_t count = 1) { return {BufferKind::kOutput, 0, first, count}; }
  /// New scratch memory as large as `like`.
  ChunkRange scratch(const ChunkRange& like);
  /// New scratch memory for partial results as large as `like`.
  ChunkRange wideScratch(const ChunkRange& like);
  bool isWide(const ChunkRange& range) const { return schedule_.isWide(range); }

  void send(int peer, const ChunkRange& range, uint32_t tag = 0);
  void receive(int peer, const ChunkRange& range, uint32_t tag = 0);
  void copy(const ChunkRange& target, const ChunkRange& source);
  /// Makes a partial result. Requires: `target` is wide.
  void reducePartly(const ChunkRange& target, std::vector<ChunkRange> sources);
  /// Makes the final value of all ranks' contributions. Requires: `target` is not wide.
  void reduceFinally(const ChunkRange& target, std::vector<ChunkRange> sources);

  /// Returns the schedule with its dependencies, and consumes the builder.
  Schedule build() &&;

 private:
  Step& add(StepKind kind, const ChunkRange& range);

  Schedule schedule_;
};

/// Chunks first .. first + count - 1 of the buffer of `range`.
ChunkRange part(const ChunkRange& range, uint32_t first, uint32_t count);

}  // namespace agspeed::comm
