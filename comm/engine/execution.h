// SPDX-License-Identifier: Apache-2.0
// Execution: executes one rank's schedule over a messenger.
//
// Up to `window` segments of the schedule (chunk_layout.h) are in flight at a time, each in a slot with its own scratch
// memory. A step starts when the steps it depends on have finished. Sends and receives run concurrently. Reductions run
// one after another, each between two polls of the network, so they overlap with transfers. An execution is made for
// one schedule and reused; running it allocates only while its scratch memory grows to the longest operation so far.
//
// Threading: on the engine's driver. Ownership: the creator's; it must not be destroyed while it runs.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/engine/call.h"
#include "comm/engine/chunk_layout.h"
#include "comm/engine/engine.h"
#include "comm/reduce/reduce.h"
#include "comm/schedule/schedule.h"

namespace agspeed::comm {

/// A schedule, prepared for execution: the steps that depend on each step.
struct PreparedSchedule {
  explicit PreparedSchedule(Schedule schedule);

  Schedule schedule;
  std::vector<std::vector<uint32_t>> dependents;  ///< of each step
  std::vector<uint32_t> numDependencies;
};

/// The parameters of one run. All objects that they refer to outlive the run.
struct ExecutionRequest {
  const CollectiveCall* call = nullptr;
  std::span<const int> members;  ///< the messenger's rank of each rank of the group
  uint32_t communicator = 0;     ///< for message names
  uint64_t sequence = 0;         ///< for message names
  size_t segmentElements = 1;
  std::span<const uint32_t> shares = {};
  uint32_t window = 1;
  int priority = 0;
  std::string_view group = {};  ///< its name, for the log
  uint64_t number = 0;          ///< of the operation in its group, for the log
};

class Execution;

class ExecutionListener {
 public:
  /// On the driver. The listener may start the execution again from here.
  virtual void executionEnded(Execution& execution) = 0;
  /// A transfer with `rank` of the group failed. The execution does not end until it is cancelled. Not called from
  /// within the messenger.
  virtual void executionFailed(Execution& execution, int rank, const Status& status) = 0;

 protected:
  ~ExecutionListener() = default;
};

class Execution final : private Worker {
 public:
  Execution(const PreparedSchedule& prepared, Engine& engine, ExecutionListener& listener);

  /// Starts a run, which may end before this returns. Requires: not running.
  void start(const ExecutionRequest& request);
  /// Ends all transfers without calling the listener. Requires: running, not from within the messenger.
  void cancel(const Status& reason);

  /// "segment 3 of 8, waiting for ranks 1 and 2".
  std::string progress() const;
  /// Ranks of the group with unfinished transfers (sends or receives), ascending.
  std::vector<int> awaitedRanks() const;

 private:
  /// A message of one step.
  struct StepTransfer final : Transfer {
    void finished(const Status& status) override { owner->transferFinished(*this, status); }
    std::string describe() const override { return owner->describe(); }

    Execution* owner = nullptr;
    uint32_t slot = 0;
    uint32_t step = 0;
    int rank = -1;  ///< of the peer in the group
    bool isPending = false;
  };

  /// One segment in flight.
  struct SegmentSlot {
    uint32_t segment = 0;
    uint32_t numStepsLeft = 0;
    std::vector<uint32_t> numWaiting;  ///< unfinished dependencies of each step
    std::vector<Chunk> input, output;
    std::vector<size_t> scratchOffsets;
    std::unique_ptr<std::byte[]> scratch;
    size_t scratchBytes = 0;
    std::vector<StepTransfer> transfers;  ///< one per step; only sends and receives use theirs
  };
  /// A range in memory.
  struct View {
    std::byte* data;
    size_t numElements;
    bool isWide;
  };

  void openSlot(uint32_t slot, uint32_t segment);
  void layOutScratch(SegmentSlot& slot);
  void launch(uint32_t slot, uint32_t step);
  void compute(const SegmentSlot& slot, const Step& step);
  void complete(uint32_t slot, uint32_t step);
  void drain();
  void advance(uint32_t slot, uint32_t step);
  void transferFinished(StepTransfer& transfer, const Status& status);
  std::string describe() const;
  void work(uint64_t token) override;

  std::span<const Chunk> chunksOf(const SegmentSlot& slot, const ChunkRange& range) const;
  View view(const SegmentSlot& slot, const ChunkRange& range) const;
  size_t sizeOf(const View& view) const { return view.numElements * (view.isWide ? wideBytes_ : elementBytes_); }

  const PreparedSchedule& prepared_;
  Engine& engine_;
  ExecutionListener& listener_;

  ExecutionRequest request_;
  ChunkLayout layout_;
  size_t elementBytes_ = 1, wideBytes_ = 1;
  std::vector<SegmentSlot> slots_;
  /// Slot and step of finished steps whose dependents are not started yet: a ring with room for all steps of all slots.
  std::vector<std::pair<uint32_t, uint32_t>> done_;
  size_t firstDone_ = 0, numDone_ = 0;
  std::vector<Operand> operands_;
  uint32_t nextSegment_ = 0;
  uint32_t numOpenSlots_ = 0;
  bool isDraining_ = false;
  Status failure_;
  int failedRank_ = -1;  ///< the peer of the failed transfer
};

}  // namespace agspeed::comm
