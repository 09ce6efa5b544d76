// SPDX-License-Identifier: Apache-2.0
// ResponseRunner: runs the responses of a coordinator, in their order, as collectives of one communicator.
//
// A response of one tensor uses the caller's memory. Several tensors are packed into a fusion buffer and unpacked from
// it, in parts. The engine polls the network between two parts.
//
// Packing and unpacking also scale the elements. For an average of floats, the inputs are multiplied by 1/size before
// the sum. DistributedDataParallel does the same, so both train to the same bits. Integers are scaled after the sum. A
// rank that has joined has no tensors, and contributes zeros.
//
// Memory: at most four fusion buffers, which are reused. The size of a buffer is a power of two, at least 64 KiB. A
// response that needs a buffer waits while none is free. Threading: on the engine's driver.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "comm/collective/communicator.h"
#include "comm/named/coordinator/fusion.h"
#include "comm/named/named_operation.h"
#include "comm/named/timeline.h"

namespace agspeed::comm::named {

class ResponseListener {
 public:
  /// Reports that the collectives of a response have completed or were cancelled. Results may still have to be
  /// unpacked. `first`: the request of the first operation in the response.
  virtual void responseMoved(const Request& first) = 0;
  /// Reports that the operations of a response have completed with this status. Operations that this rank has not
  /// started are null.
  virtual void responseEnded(const std::vector<NamedHandle>& operations, const Status& status) = 0;

 protected:
  ~ResponseListener() = default;
};

/// Memory that the runner holds, and counters of its runs.
struct RunnerStats {
  size_t fusionBufferBytes = 0;     ///< bytes of all fusion buffers now
  size_t maxFusionBufferBytes = 0;  ///< the maximum of fusionBufferBytes so far
  int numFusionBuffers = 0;
  uint64_t numResponses = 0, numOperations = 0;
};

class ResponseRunner final : private engine::Worker {
 public:
  ResponseRunner(engine::Engine& engine, collective::Communicator& communicator, ResponseListener& listener)
      : engine_(engine), communicator_(communicator), listener_(listener) {}
  /// Requires: cancel() was called, and the communicator has completed all operations.
  ~ResponseRunner();

  /// Starts to run a response. operations[i] is this rank's operation for agreements[i], or null if this rank has none.
  /// agreements[0] is never null. Another agreements[i] may be null if operations[i] is not null; the request of this
  /// operation has the same values.
  void run(std::vector<AgreementHandle> agreements, std::vector<NamedHandle> operations);
  /// Fails all runs, except for runs whose collectives are in flight. The communicator completes these collectives.
  void cancel(const Status& reason);
  /// Sets the timeline to which activities are written; null: none.
  void setTimeline(Timeline* timeline) { timeline_ = timeline; }
  const RunnerStats& stats() const { return stats_; }
  /// Whether no response is in flight.
  bool isIdle() const { return runs_.empty(); }

 private:
  /// Copies elements, and multiplies them by a factor.
  struct Copy {
    std::byte* target;
    const std::byte* source;  ///< null: copy zeros
    size_t count;             ///< number of elements to copy
    double factor = 1;
  };
  struct CopyList {
    std::vector<Copy> copies;
    size_t numDone = 0;  ///< number of complete copies
  };

  /// A response in flight.
  struct Run {
    const Request& first() const { return agreements[0]->request; }
    const std::string& name(size_t at) const {
      return agreements[at] != nullptr ? agreements[at]->request.name : operations[at]->request().name;
    }
    bool isFusable() const { return comm::coordinator::isFusable(first().kind); }
    bool needsBuffer() const;
    /// Returns the number of bytes of all tensors of the operation at index `at`. Requires: isFusable().
    size_t bytesOf(size_t at) const;

    std::vector<AgreementHandle> agreements;
    std::vector<NamedHandle> operations;
    DType dtype = DType::kU8;
    size_t numBytes = 0;
    bool isPrepared = false;
    CopyList before, after;  ///< copies to make before the calls start, and after the calls have completed
    std::vector<engine::CollectiveCall> calls;
    size_t numCallsLeft = 0;
    bool hasStarted = false;  ///< packing is complete
    bool hasMoved = false;    ///< responseMoved() was called
    std::unique_ptr<std::byte[]> buffer;
    size_t capacity = 0;  ///< bytes allocated for `buffer`
    Status status;
  };

  /// Fills `calls`, `before` and `after` of the run. Calls one of the five functions below, as named_kinds.def states
  /// for the kind.
  Status prepare(Run& run);
  static Status prepareNothing(Run& run);
  Status prepareFused(Run& run);
  Status prepareGather(Run& run);
  Status prepareExchange(Run& run);
  Status prepareScatter(Run& run);
  /// Adds a Copy of the result onto itself that scales it, if the result must be scaled.
  void scaleAfter(Run& run, std::byte* bytes, size_t count) const;
  /// Inputs are multiplied by factorBefore() before the sum, and results by factorAfter() after it.
  double factorBefore(const Request& request) const;
  double factorAfter(const Request& request) const;
  /// Takes a free fusion buffer for the run, or allocates one. Returns false if the run must wait for a buffer.
  bool takeBuffer(Run& run);
  /// begin() starts an activity in the timeline, and endActivity() ends the innermost one, for all operations of the
  /// run.
  void begin(const Run& run, std::string_view activity);
  void endActivity(const Run& run);

  void work(uint64_t token) override;
  /// Packs a part of the oldest response that has not started. Starts the response once all parts are packed.
  void packNext();
  /// Schedules a call of work().
  void workLater(uint64_t token);
  /// Makes the next copies of the list, up to a limit. Returns true if all copies are complete.
  bool copySome(Run& run, CopyList& list);
  /// Starts the collectives of the run.
  void start(Run& run);
  /// Handles that a collective of the run has completed. After the last one, unpacking begins.
  void callEnded(Run& run, const Status& status);
  /// Calls responseMoved() once per run.
  void moved(Run& run);
  /// Removes the run, frees its buffer for other runs, and reports its operations as completed.
  void end(Run& run);

  engine::Engine& engine_;
  collective::Communicator& communicator_;
  ResponseListener& listener_;
  std::deque<std::unique_ptr<Run>> runs_;                                     ///< in the order of the responses
  std::vector<std::pair<size_t, std::unique_ptr<std::byte[]>>> freeBuffers_;  ///< with their capacities
  Timeline* timeline_ = nullptr;
  RunnerStats stats_;
};

}  // namespace agspeed::comm::named
