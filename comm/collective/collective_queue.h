// SPDX-License-Identifier: Apache-2.0
// CollectiveQueue: the waiting and running collectives of a group; decides which may start next.
//
// Operations start in the order of their priority while their bytes in flight stay below a limit. The oldest operation
// may always start. All ranks submit in the same order, so the oldest one is the same everywhere and ranks cannot
// deadlock. An operation whose input is not there yet (Readiness) keeps its place, and later ones may start before it.
// A barrier starts only as the oldest, so it ends after all operations called before it; later ones may start before
// it. Operations called after an exchange of host statistics wait until the exchange has ended.
//
// Threading: one thread at a time. The queue itself starts and ends no operation.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "comm/collective/plan_fitter.h"
#include "comm/engine/call.h"
#include "comm/engine/operation.h"

namespace agspeed::comm {

class Execution;

/// A collective in flight.
struct CollectiveOperation final : Operation {
  using Operation::Operation;

  CollectiveCall call;
  int priority = 0;
  Clock::time_point started, deadline;
  Readiness readiness;  ///< null once the input is there
  /// Multiplied copy of the input while a premultiplied sum runs, if the output is too small to hold it.
  std::unique_ptr<std::byte[]> scaledInput;
  // Set by the group.
  bool isHostStatsExchange = false;
  uint64_t sequence = 0;
  uint64_t chain = 0;
  CallSignature signature;
  Choice choice;  ///< equal at all ranks when the call is made
  FittedChoice fitted;
  Execution* execution = nullptr;  ///< while running
  bool hasSentHistory = false;     ///< to the ranks that it waits for
};

class CollectiveQueue {
 public:
  using Handle = std::shared_ptr<CollectiveOperation>;

  /// Queue of a group of `numRanks`. Operations wait for older ones while more than `maxInFlightBytes` would be in
  /// flight.
  CollectiveQueue(int numRanks, size_t maxInFlightBytes)
      : numRanks_(static_cast<size_t>(numRanks)), maxInFlightBytes_(maxInFlightBytes) {}

  /// Appends a waiting operation. Requires: sequences ascend.
  void add(Handle operation);
  /// Takes the next operation that may start and counts it as running; null if none may start.
  Handle startNext();
  /// Removes and returns the operation that runs in `execution`.
  Handle finish(const Execution& execution);
  /// The running operation that a waiting `operation` has to wait for, even below the limit on bytes; null: none.
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
  std::deque<uint64_t> exchanges_;  ///< sequences of exchanges of host statistics that have not ended
  size_t bytesInFlight_ = 0;        ///< of running operations
};

}  // namespace agspeed::comm
