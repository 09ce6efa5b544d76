// SPDX-License-Identifier: Apache-2.0
// Execution: executes one rank's schedule over a messenger.
//
// Up to `window` segments of the schedule (chunk_layout.h) are in flight at a time, each in a slot with its own scratch
// memory. Messages to other hosts may be sent compressed, as a lossless code (wire_coder.h). A step starts when the
// steps it depends on have finished. Sends and receives run concurrently. Reductions run one after another, each
// between two polls of the network, so they overlap with transfers. An execution belongs to one schedule and is reused.
// A run allocates memory only if it needs more slots or scratch memory than all runs before.
//
// Threading: all functions run on the engine's driver. Ownership: the creator owns an execution, and must not destroy
// it while it runs.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/engine/call.h"
#include "comm/engine/chunk_layout.h"
#include "comm/engine/engine.h"
#include "comm/reduce/reduce.h"
#include "comm/schedule/schedule.h"

namespace agspeed::comm::engine {

/// A schedule and, for each step, the steps that depend on it.
struct PreparedSchedule {
  explicit PreparedSchedule(schedule::Schedule schedule);

  schedule::Schedule schedule;
  std::vector<std::vector<uint32_t>> dependents;  ///< dependents[i]: the steps that depend on step i
  std::vector<uint32_t> numDependencies;          ///< numDependencies[i]: how many steps step i depends on
  std::vector<uint32_t> firstOfMessage;           ///< for step i: the first step that sends the same bytes
};

/// The parameters of one run. All objects that they refer to outlive the run.
struct ExecutionRequest {
  const CollectiveCall* call = nullptr;
  std::span<const int> members;           ///< the messenger's rank of each rank of the group
  uint32_t communicator = 0;              ///< the communicator in the names of the run's messages
  uint64_t sequence = 0;                  ///< the sequence in the names of the run's messages
  size_t segmentElements = 1;             ///< see ChunkLayout
  std::span<const uint32_t> shares = {};  ///< see ChunkLayout
  uint32_t window = 1;                    ///< the most segments in flight
  int priority = 0;                       ///< of the run's computations; see Engine::addWork
  std::string_view group = {};            ///< the name of the group, for the log
  uint64_t number = 0;                    ///< the number of the operation in its group, for the log
};

class Execution;

class ExecutionListener {
 public:
  /// Reports that a run is complete. The listener may start the execution again within this call.
  virtual void executionEnded(Execution& execution) = 0;
  /// Reports the first failure of a run: a transfer with `rank` of the group has failed. The run does not complete by
  /// itself; the listener must cancel it. The messenger is not calling Transfer::finished() at this time, so the
  /// listener may cancel transfers.
  virtual void executionFailed(Execution& execution, int rank, const Status& status) = 0;

 protected:
  ~ExecutionListener() = default;
};

class Execution final : private Worker {
 public:
  Execution(const PreparedSchedule& prepared, Engine& engine, ExecutionListener& listener);

  /// Starts a run, which may complete before this function returns. Requires: no run is in progress.
  void start(const ExecutionRequest& request);
  /// Cancels the run and all its transfers, without calling the listener. Requires: a run is in progress, and the
  /// messenger is not calling Transfer::finished().
  void cancel(const Status& reason);

  /// Describes the progress of the run: "segment 3 of 8, waiting for ranks 1 and 2".
  std::string progress() const;
  /// Returns the ranks of the group with which sends or receives are in flight, in ascending order.
  std::vector<int> awaitedRanks() const;
  /// The bytes that this rank sends and receives in the run.
  struct Traffic {
    uint64_t numBytes = 0;
    uint64_t numMoved = 0;  ///< the part of numBytes that is sent or received already
  };
  /// Counts the run's bytes. The call takes time in proportion to its segments and steps.
  Traffic traffic() const;

 private:
  /// The send or receive of one step.
  struct StepTransfer final : messaging::Transfer {
    void finished(const Status& status) override { owner->transferFinished(*this, status); }
    std::string describe() const override { return owner->describe(); }

    Execution* owner = nullptr;
    uint32_t slot = 0;
    uint32_t step = 0;
    int rank = -1;  ///< the rank of the peer in the group
    enum class State : uint8_t {
      kIdle,
      kCoding,  ///< waits for work() to encode its message, or to decode it
      kMoving,  ///< the messenger has the transfer in flight
    };
    State state = State::kIdle;
  };

  /// The compressed bytes of a message. Later segments reuse the memory.
  struct Code {
    std::vector<std::byte> memory;
    std::optional<size_t> numBytes;  ///< 0: the values are sent as they are; nullopt: not encoded yet
  };

  /// The state of one segment in flight.
  struct SegmentSlot {
    uint32_t segment = 0;
    uint32_t numStepsLeft = 0;
    std::vector<uint32_t> numWaiting;  ///< by step: how many dependencies are unfinished
    std::vector<Chunk> input, output;
    std::vector<size_t> scratchOffsets;
    std::unique_ptr<std::byte[]> scratch;
    size_t scratchBytes = 0;
    std::vector<StepTransfer> transfers;  ///< one per step, used only by sends and receives
    /// By step: the code of the bytes that it sends. All sends of the same bytes share the code of their
    /// PreparedSchedule::firstOfMessage.
    std::vector<Code> codes;
  };
  /// The memory of a chunk range.
  struct View {
    std::byte* data;
    size_t numElements;
    bool isWide;  ///< the elements have the accumulator type
  };

  /// Starts a segment in a slot.
  void openSlot(uint32_t slot, uint32_t segment);
  void layOutScratch(SegmentSlot& slot);
  /// Starts a step whose dependencies have finished.
  void launch(uint32_t slot, uint32_t step);
  void send(StepTransfer& transfer);
  /// Replaces the bytes of a send by their code, if WireCoder::encode() finds that this saves time.
  void encode(SegmentSlot& slot, StepTransfer& transfer);
  void decode(StepTransfer& transfer);
  void compute(const SegmentSlot& slot, const schedule::Step& step);
  /// Records that a step has finished. Calls drain(), unless drain() is running.
  void complete(uint32_t slot, uint32_t step);
  /// Starts the steps whose dependencies have finished. Reports the end of the run after the last step.
  void drain();
  /// Starts the steps that only waited for this step, or the next segment after the last step of a segment.
  void advance(uint32_t slot, uint32_t step);
  void transferFinished(StepTransfer& transfer, const Status& status);
  std::string describe() const;
  /// Returns the size of a chunk range in a slot that is laid out.
  uint64_t bytesOf(const SegmentSlot& slot, const schedule::ChunkRange& range) const;
  /// Returns how many bytes this rank has sent and received so far for the segment in this slot. Requires: a segment is
  /// in the slot.
  uint64_t numMoved(const SegmentSlot& slot) const;
  void work(uint64_t token) override;

  std::span<const Chunk> chunksOf(const SegmentSlot& slot, const schedule::ChunkRange& range) const;
  View view(const SegmentSlot& slot, const schedule::ChunkRange& range) const;
  DType typeOf(const schedule::ChunkRange& range) const;
  size_t sizeOf(const View& view) const { return view.numElements * (view.isWide ? wideBytes_ : elementBytes_); }

  const PreparedSchedule& prepared_;
  Engine& engine_;
  ExecutionListener& listener_;

  ExecutionRequest request_;
  ChunkLayout layout_;
  size_t elementBytes_ = 1, wideBytes_ = 1;  ///< bytes of an element, and of one of the accumulator type
  std::vector<SegmentSlot> slots_;
  /// Finished steps (slot, step) whose dependents are not started yet: a ring with room for all steps of all slots.
  std::vector<std::pair<uint32_t, uint32_t>> done_;
  size_t firstDone_ = 0, numDone_ = 0;
  std::vector<reduce::Operand> operands_;
  std::vector<std::byte> received_;  ///< the code that decode() reads
  uint32_t nextSegment_ = 0;
  uint32_t numOpenSlots_ = 0;
  bool isDraining_ = false;
  std::optional<Status> failure_;  ///< the error of the first transfer that failed
  int failedRank_ = -1;            ///< the peer of the failed transfer
};

}  // namespace agspeed::comm::engine
