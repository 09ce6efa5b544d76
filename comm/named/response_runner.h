// SPDX-License-Identifier: Apache-2.0
// ResponseRunner: runs the responses of a coordinator, in their order, as collectives of one communicator.
//
// A response of one tensor works on the caller's memory. Several tensors are packed into a fusion buffer and unpacked
// from it, in parts; the engine polls the network between two parts. Packing and unpacking also scale: averages of
// floats multiply by 1/size before the sum, as DistributedDataParallel does, so both train to the same bits. Integers
// are scaled after the sum. A rank without the tensors (it has joined) contributes zeros.
//
// Memory: at most four fusion buffers, which are reused. The size of each is a power of two that fits the largest
// response that used it so far. A response waits while no buffer is free. Threading: on the engine's driver.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "comm/collective/communicator.h"
#include "comm/named/named_operation.h"
#include "comm/named/timeline.h"

namespace agspeed::comm {

class ResponseListener {
 public:
  /// The data of a response has moved or never will; unpacking may remain. `first`: the request of its first operation.
  virtual void responseMoved(const Request& first) = 0;
  /// All operations of a response have ended with this status. Operations that this rank has not started are null.
  virtual void responseEnded(const std::vector<NamedHandle>& operations, const Status& status) = 0;

 protected:
  ~ResponseListener() = default;
};

/// Memory that the runner holds, and counts of what it has run.
struct RunnerStats {
  size_t fusionBufferBytes = 0;     ///< current
  size_t maxFusionBufferBytes = 0;  ///< maximum so far
  int numFusionBuffers = 0;
  uint64_t numResponses = 0, numOperations = 0;
};

class ResponseRunner final : private Worker {
 public:
  ResponseRunner(Engine& engine, Communicator& communicator, ResponseListener& listener)
      : engine_(engine), communicator_(communicator), listener_(listener) {}
  /// Requires: cancel(), and no operation of the communicator is left.
  ~ResponseRunner();

  /// Runs agreements of one kind. operations[i] is this rank's part of agreements[i], or null. Only the first agreement
  /// is required if the others have an operation, because its request holds the same.
  void run(std::vector<AgreementHandle> agreements, std::vector<NamedHandle> operations);
  /// Ends runs that have not started. The communicator ends runs that have.
  void cancel(const Status& reason);
  /// Null: no timeline is written.
  void setTimeline(Timeline* timeline) { timeline_ = timeline; }
  const RunnerStats& stats() const { return stats_; }
  /// Whether no response is in flight.
  bool isIdle() const { return runs_.empty(); }

 private:
  struct Copy {
    std::byte* target;
    const std::byte* source;  ///< null: zeros
    size_t count;             ///< elements
    double factor = 1;
  };
  struct CopyList {
    std::vector<Copy> copies;
    size_t numDone = 0;
  };

  /// A response in flight.
  struct Run {
    const Request& first() const { return agreements[0]->request; }
    const std::string& name(size_t at) const {
      return agreements[at] != nullptr ? agreements[at]->request.name : operations[at]->request().name;
    }
    bool isFusable() const { return first().kind == NamedKind::kAllReduce || first().kind == NamedKind::kBroadcast; }
    bool needsBuffer() const;
    /// Bytes of all tensors of a fusable operation.
    size_t bytesOf(size_t at) const;

    std::vector<AgreementHandle> agreements;
    std::vector<NamedHandle> operations;
    DType dtype = DType::kU8;
    size_t numBytes = 0;
    bool isPrepared = false;
    CopyList before, after;  ///< copies before the calls start, and after they have ended
    std::vector<CollectiveCall> calls;
    size_t numCallsLeft = 0;
    bool hasStarted = false, hasMoved = false;
    std::unique_ptr<std::byte[]> buffer;
    size_t capacity = 0;
    Status status;
  };

  Status prepare(Run& run);
  void prepareFused(Run& run);
  Status prepareGather(Run& run);
  Status prepareExchange(Run& run);
  Status prepareScatter(Run& run);
  void scaleAfter(Run& run, std::byte* bytes, size_t count) const;
  double factorBefore(const Request& request) const;
  double factorAfter(const Request& request) const;
  /// Returns whether the run has a buffer now.
  bool takeBuffer(Run& run);
  void begin(const Run& run, std::string_view activity);
  void endActivity(const Run& run);

  void work(uint64_t token) override;
  /// Packs a part of the oldest response that has not started, and starts it once it is packed.
  void packNext();
  void workLater(uint64_t token);
  /// Copies a part of the list; returns whether all is copied.
  bool copySome(Run& run, CopyList& list);
  void start(Run& run);
  void callEnded(Run& run, const Status& status);
  void moved(Run& run);
  void end(Run& run);

  Engine& engine_;
  Communicator& communicator_;
  ResponseListener& listener_;
  std::deque<std::unique_ptr<Run>> runs_;  ///< in the order of the responses
  std::vector<std::pair<size_t, std::unique_ptr<std::byte[]>>> freeBuffers_;
  Timeline* timeline_ = nullptr;
  RunnerStats stats_;
};

}  // namespace agspeed::comm
