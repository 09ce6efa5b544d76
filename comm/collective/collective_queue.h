// SPDX-License-Identifier: Apache-2.0
// CollectiveQueue: holds the waiting and running collectives of a group, and decides which may start next.
//
// The oldest unfinished operation starts first, whatever its priority, and even beyond the limit of bytes in flight.
// Further operations start in the order of their priority while the bytes in flight stay within that limit. All ranks
// submit operations in the same order, so the oldest one is the same at all ranks, and ranks cannot deadlock. There are
// three special cases:
//
//   input not ready yet (Readiness)   the operation keeps its place, and later operations may start before it
//   barrier                           starts only when it is the oldest unfinished operation, so it completes after all
//                                     operations before it. Later operations may start before the barrier
//   exchange of host statistics       later operations wait until the exchange is complete
//
// Threading: only one thread at a time may use a queue. The queue holds operations; the group starts and completes
// them.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "comm/collective/plan_fitter.h"
#include "comm/engine/call.h"
#include "comm/engine/execution.h"
#include "comm/engine/operation.h"

namespace agspeed::comm::collective {

/// A collective operation that a rank has started.
struct CollectiveOperation final : engine::Operation {
  using engine::Operation::Operation;

  engine::CollectiveCall call;
  int priority = 0;
  io::Clock::time_point started, deadline;
  engine::Readiness readiness;  ///< returns whether the input is ready; null once it is ready
  /// The multiplied input of a premultiplied sum while it runs. An all-reduce uses its output instead.
  std::unique_ptr<std::byte[]> scaledInput;
  // The group sets these members.
  bool isHostStatsExchange = false;
  uint64_t sequence = 0;  ///< its number among the collectives of the group
  uint64_t chain = 0;     ///< hash of all calls up to this one (call_history.h)
  engine::CallSignature signature;
  plan::Choice choice;                     ///< the plan's choice, equal at all ranks when the call is made
  FittedChoice fitted;                     ///< the choice, fitted to the hosts that are known so far
  engine::Execution* execution = nullptr;  ///< null unless the operation runs
  bool hasSentHistory = false;  ///< whether the last calls were sent to the ranks that the operation waits for
};

class CollectiveQueue {
 public:
  using Handle = std::shared_ptr<CollectiveOperation>;

  /// Makes the empty queue of a group of `numRanks` ranks. Operations wait for older operations while more than
  /// `maxInFlightBytes` would be in flight.
  CollectiveQueue(int numRanks, size_t maxInFlightBytes)
      : numRanks_(static_cast<size_t>(numRanks)), maxInFlightBytes_(maxInFlightBytes) {}

  /// Appends a waiting operation. Requires: its sequence is higher than the sequences of all earlier operations.
  void add(Handle operation);
  /// Moves the next operation that may start from waiting() to running(), and returns it; null: none may start.
  Handle startNext();
  /// Removes and returns the operation that runs in `execution`.
  Handle finish(const engine::Execution& execution);
  /// Returns an older operation, running or waiting, that must complete before the waiting `operation` may start. Null:
  /// there is none, so the limit of bytes in flight delays it.
  const CollectiveOperation* holderOf(const CollectiveOperation& operation) const;

  const std::deque<Handle>& waiting() const { return waiting_; }   ///< in the order of their sequences
  const std::vector<Handle>& running() const { return running_; }  ///< in the order of their starts

  struct Operations {
    std::vector<Handle> running;
    std::deque<Handle> waiting;
  };
  /// Removes and returns all operations.
  Operations takeAll();

 private:
  /// Returns the waiting operation that may start next, or the end of waiting_.
  std::deque<Handle>::iterator findNext();
  /// Returns the most bytes of the operation that are in flight at a time: segment size * window * number of ranks, but
  /// at most the size of its buffers.
  size_t bytesInFlight(const CollectiveOperation& operation) const;

  const size_t numRanks_, maxInFlightBytes_;
  std::deque<Handle> waiting_;
  std::vector<Handle> running_;
  std::deque<uint64_t> exchanges_;  ///< sequences of exchanges of host statistics that are not complete
  size_t bytesInFlight_ = 0;        ///< sum of bytesInFlight() of the running operations
};

}  // namespace agspeed::comm::collective
