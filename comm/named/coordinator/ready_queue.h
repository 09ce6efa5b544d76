// SPDX-License-Identifier: Apache-2.0
// ReadyQueue: keeps the operations that all ranks have submitted, in the order of the plan. It decides when the next
// response is due.
//
// A large tensor runs alone, because copies into a buffer and back would cost more than one more operation.
// Threading: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "comm/io/clock.h"
#include "comm/named/coordinator/entry.h"
#include "comm/named/coordinator/fusion.h"
#include "comm/named/coordinator/id_cache.h"

namespace agspeed::comm::coordinator {

/// Counts the responses whose data is moving. Responses of one large tensor are counted separately.
struct RunningResponses {
  /// began() records that a response has begun, and ended() that it has ended. `first`: the request of its first
  /// operation.
  void began(const named::Request& first);
  void ended(const named::Request& first);

  size_t numOther = 0, numLarge = 0, largeBytes = 0;
};

class ReadyQueue {
 public:
  explicit ReadyQueue(FusionPlan plan) : plan_(plan) {}

  const FusionPlan& plan() const { return plan_; }
  /// Returns whether the plan lets a batch of this size run as a whole, at one place in the order.
  bool runsWhole(size_t numBytes) const;
  /// Returns the number of bytes of all entries. An entry without bytes is counted as one byte, so the result is 0 only
  /// if the queue is empty.
  size_t numBytes() const { return numBytes_; }
  /// Decides whether a response should be made now. Returns false in three cases:
  /// - The queue is empty.
  /// - Enough responses are running, so the ready operations wait and more operations can be fused with them.
  /// - FusionOrder::kSize holds a buffer that is not full. This function begins such a hold.
  ///
  /// `areAwaited`: some operations wait for ranks, so a buffer may still become full.
  bool isResponseDue(const RunningResponses& running, bool areAwaited, io::Clock::time_point now);
  /// Returns the time until which the plan holds entries; max: it holds none.
  io::Clock::time_point heldUntil() const { return heldUntil_; }

  /// Inserts an entry that has become ready. FusionOrder::kModel orders names by their ids in `ids`.
  void push(EntryHandle entry, const IdCache& ids);
  /// Removes and returns the first entry. Requires: the queue is not empty.
  EntryHandle pop();
  /// Removes entries for which `isWanted` returns true and which together fit into `room` bytes, and returns them in
  /// order. Never removes entries of large tensors.
  std::vector<EntryHandle> popFitting(size_t room, const std::function<bool(const Entry&)>& isWanted);
  /// Replaces the plan. If the new plan does not run a batch as a whole, this function calls `split`, which makes one
  /// entry per id of the batch.
  void setPlan(FusionPlan plan, const IdCache& ids, const std::function<std::vector<EntryHandle>(const Batch&)>& split);
  /// Sets Entry::id of the entry with this id to 0, because the id was evicted.
  void forgetId(uint32_t id);

 private:
  /// Sets the entry's size, and its place in the plan's order.
  void place(Entry& entry, const IdCache& ids) const;

  FusionPlan plan_;
  std::deque<EntryHandle> entries_;
  size_t numBytes_ = 0;
  uint64_t numPushed_ = 0;
  io::Clock::time_point heldUntil_ = io::Clock::time_point::max();
};

}  // namespace agspeed::comm::coordinator
