// SPDX-License-Identifier: Apache-2.0
// CollectiveQueue: the collectives of a group that wait and those that run, and which may start next.
//
// Operations start in the order of their priority while their bytes in flight stay below a limit; the oldest one always
// may. All ranks submit in the same order, so the oldest is the same everywhere and nothing can wait in a circle. One
// whose input is still to come (Readiness) keeps its place and lets others pass. A barrier starts as the oldest, so it
// ends after all that was called before it, and lets others pass meanwhile. What was called after an exchange of host
// statistics waits for its end.
//
// Threading: one thread at a time. Starts and ends nothing itself.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "comm/collective/plan_fitter.h"
#include "comm/engine/call.h"
#include "comm/engine/operation.h"

namespace agspeed::comm {

class Execution;

/// A collective under way.
struct CollectiveOperation final : Operation {
  using Operation::Operation;

  CollectiveCall call;
  int priority = 0;
  Clock::time_point started, deadline;
  Readiness readiness;  ///< null once the input is there
  /// Of a premultiplied sum, where the output cannot hold it, while running.
  std::unique_ptr<std::byte[]> scaledInput;
  // Set by the group.
  bool isHostStatsExchange = false;
  uint64_t sequence = 0;
  uint64_t chain = 0;
  CallSignature signature;
  Choice choice;  ///< equal at all ranks when it is made
  FittedChoice fitted;
  Execution* execution = nullptr;  ///< while running
  bool hasSentHistory = false;     ///< to the ranks it waits for
};

class CollectiveQueue {
 public:
  using Handle = std::shared_ptr<CollectiveOperation>;

  /// Of a group of `numRanks`; from `maxInFlightBytes` on operations wait for older ones.
  CollectiveQueue(int numRanks, size_t maxInFlightBytes)
      : numRanks_(static_cast<size_t>(numRanks)), maxInFlightBytes_(maxInFlightBytes) {}

  /// Appends to those that wait. Requires: sequences ascend.
  void add(Handle operation);
  /// Takes the next that may start and counts it among those that run; null where none may.
  Handle startNext();
  /// Takes the operation that runs in `execution` out.
  Handle finish(const Execution& execution);
  /// The running operation that keeps `operation`, which waits, from starting whatever room there is; null: none.
  const CollectiveOperation* holderOf(const CollectiveOperation& operation) const;

  const std::deque<Handle>& waiting() const { return waiting_; }   ///< in order of their sequence
  const std::vector<Handle>& running() const { return running_; }  ///< in order of their start

  struct Operations {
    std::vector<Handle> running;
    std::deque<Handle> waiting;
  };
  /// Empties the queue.
  Operations takeAll();

 private:
  std::deque<Handle>::iterator findNext();
  size_t bytesInFlight(const CollectiveOperation& operation) const;

  const size_t numRanks_, maxInFlightBytes_;
  std::deque<Handle> waiting_;
  std::vector<Handle> running_;
  std::deque<uint64_t> exchanges_;  ///< sequences of those of host statistics that have not ended
  size_t bytesInFlight_ = 0;        ///< of running operations
};

}  // namespace agspeed::comm
