// SPDX-License-Identifier: Apache-2.0
// Batches: the lists of ids that ranks send to the coordinator as a whole (Batch in entry.h).
//
// Often all ranks send the same list. Then the first rank's list costs a lookup per id, and the list of every other
// rank costs only one comparison. Threading: one thread at a time. Ownership: Batches owns batches that wait for ranks.
// The Entry of a ready batch owns that batch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "comm/named/coordinator/entry.h"

namespace agspeed::comm::coordinator {

class Batches {
 public:
  explicit Batches(int numRanks) : numRanks_(numRanks) {}

  /// Makes a waiting batch of these ids. Returns null if an id occurs twice, or if another batch contains one of the
  /// ids.
  Batch* add(const std::vector<uint32_t>& ids, size_t numBytes, io::Clock::time_point now);
  /// Returns a waiting batch with exactly this list that `rank` has not sent yet, or null if there is none.
  Batch* find(const std::vector<uint32_t>& ids, int rank) const;
  /// Returns the waiting batch that contains the id, or null.
  Batch* findWaiting(uint32_t id) const;
  /// Returns whether a batch that waits or is ready contains the id.
  bool contains(uint32_t id) const { return id <= batchOf_.size() && batchOf_[id - 1] != nullptr; }
  const std::vector<BatchHandle>& waiting() const { return waiting_; }
  /// Returns the number of ids in waiting batches.
  size_t numWaitingIds() const { return numWaitingIds_; }

  /// Removes the batch from the waiting batches. Its ids stay in it until release().
  BatchHandle take(const Batch& batch);
  /// Records that no batch contains the id any more.
  void release(uint32_t id) { batchOf_[id - 1] = nullptr; }

 private:
  int numRanks_;
  std::vector<BatchHandle> waiting_;
  std::vector<Batch*> batchOf_;  ///< batchOf_[id - 1]: the waiting or ready batch that contains the id, or null
  size_t numWaitingIds_ = 0;
};

}  // namespace agspeed::comm::coordinator
