// SPDX-License-Identifier: Apache-2.0
// Entry: the coordinator's record of an operation, from its first request to its response.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "comm/io/clock.h"
#include "comm/named/coordinator/agreement.h"

namespace agspeed::comm::coordinator {

/// A list of ids that ranks submit with one message. The batch waits until all ranks have sent the same list. It
/// replaces the entries of all its ids. If a rank submits one of these operations alone or in another list, the batch
/// is split into an entry for each id.
struct Batch {
  std::vector<uint32_t> ids;
  std::vector<bool> hasSubmitted;  ///< by rank: whether the rank has sent the list
  int numSubmitted = 0;            ///< how many ranks have sent the list; the batch is ready when all ranks have
  size_t numBytes = 0;
  io::Clock::time_point since;  ///< when the first rank sent the list
};
using BatchHandle = std::unique_ptr<Batch>;

/// An operation, or a ready batch, that waits for ranks or for its response.
struct Entry {
  Requests requests;
  int numSubmitted = 0;  ///< the number of requests that are not null
  uint32_t id = 0;       ///< the id, if all requests so far were sent by id; 0 if one was sent in full
  uint64_t order = 0;    ///< a number in the order of creation; replaced by the order of becoming ready
  int64_t place = 0;     ///< position among ready entries: the lowest runs first
  size_t numBytes = 0;   ///< bytes of the operation; set when the entry becomes ready
  BatchHandle batch;  ///< the batch, if the entry is a ready batch; `requests[0]` is then the request of its first id
  io::Clock::time_point since;  ///< when the first rank submitted the operation

  /// Returns whether the entry is a large tensor, which is never fused. Requires: the entry is ready.
  bool isLargeTensor() const;
};
using EntryHandle = std::unique_ptr<Entry>;

/// Makes entries, and reuses the memory of old ones.
class EntryPool {
 public:
  explicit EntryPool(int numRanks) : numRanks_(numRanks) {}

  EntryHandle make(uint32_t id, io::Clock::time_point now);
  /// Keeps the memory of an entry that is no longer used for a new entry.
  void recycle(EntryHandle entry);

 private:
  int numRanks_;
  std::vector<EntryHandle> spare_;
  uint64_t numMade_ = 0;
};

}  // namespace agspeed::comm::coordinator
