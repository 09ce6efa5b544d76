// SPDX-License-Identifier: Apache-2.0
// IdCache: gives ids to names whose requests repeat, so that messages contain a short number instead of a request.
//
// The first response that runs a name gives it an id. From then on, a rank whose request has not changed sends only the
// id, and responses contain only the id. When all ids are taken, the least recently used id may be evicted. A response
// announces the eviction to the ranks. When all ranks have confirmed it, the id is free for another name.
//
// Threading: one thread at a time. Ids are 1 to the capacity; 0 means "no id".
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "comm/named/coordinator/agreement.h"
#include "runtime/base/status.h"

namespace agspeed::comm::coordinator {

class IdCache {
 public:
  /// Makes a cache of at most `capacity` ids for `numRanks` ranks.
  IdCache(int numRanks, size_t capacity) : numRanks_(numRanks), capacity_(capacity) {}

  /// Returns how many names have an id.
  size_t size() const { return ids_.size(); }
  /// Returns the id of the name, or 0 if it has none.
  uint32_t find(const std::string& name) const;
  /// Returns the request that `rank` last made under the id, or null if it has made none.
  RequestHandle request(int rank, uint32_t id) const;
  /// Returns the total number of bytes of the operations of these ids. Returns nullopt if they may not be fused, or if
  /// a rank had not requested one of them when it ran last.
  std::optional<size_t> fusedBytes(const std::vector<uint32_t>& ids) const;

  // The next four functions require that the id stands for a name, or was evicted and is not free yet.
  const std::string& name(uint32_t id) const { return records_[id - 1].name; }
  bool isEvicted(uint32_t id) const { return records_[id - 1].isEvicted; }
  /// Returns whether the last response with this id had a request of every rank. It had not if a rank had joined.
  bool isOfAll(uint32_t id) const { return records_[id - 1].isOfAll; }
  /// Records that a response runs the name's operation unchanged. Returns the agreement of its requests.
  const named::AgreementHandle& use(uint32_t id);

  /// Returns the response's item for an operation whose requests agree. Gives its name an id if possible, and stores
  /// the requests under the id.
  named::Response::Item keep(const Requests& requests, size_t numBytes);
  /// Evicts ids, at most one for each name that keep() could not give an id since the last call. Evicts only ids that
  /// have not been used lately and for which `isInUse` returns false. Returns the evicted ids.
  std::vector<uint32_t> evict(const std::function<bool(uint32_t id)>& isInUse);
  /// Records that `rank` no longer uses an evicted id. Frees the id once all ranks have confirmed this. Fails with data
  /// loss if the id is not evicted.
  Status drop(int rank, uint32_t id);

 private:
  /// An id, with the name for which it stands, and its last requests and agreement.
  struct Record {
    size_t numBytes = 0;       ///< bytes of all tensors of `agreement`
    uint32_t fusionClass = 0;  ///< a number; operations with equal numbers can be fused; 0: never fused
    bool isOfAll = false;      ///< the last response with this id had a request of every rank
    bool isEvicted = false;
    int numForgotten = 0;              ///< number of ranks that have confirmed the eviction
    uint64_t lastUse = 0;              ///< the value of numUses_ when the id was last used
    named::AgreementHandle agreement;  ///< the agreement in the last response with this id
    Requests requests;                 ///< by rank: its request in the last response with this id
    std::string name;
  };

  /// Returns Record::fusionClass for an operation with this agreement.
  uint32_t fusionClassOf(const named::AgreementHandle& agreement, size_t numBytes);
  /// Gives an id to a name that has none, and returns the id, or 0 if all ids are taken.
  uint32_t newIdFor(const std::string& name);
  /// Evicts one id and returns it. Returns 0 if no id may be evicted.
  uint32_t evictOne(const std::function<bool(uint32_t id)>& isInUse);

  int numRanks_;
  size_t capacity_;
  std::vector<Record> records_;  ///< records_[id - 1] belongs to `id`
  std::unordered_map<std::string, uint32_t> ids_;
  std::vector<uint32_t> freeIds_;
  size_t numWithoutId_ = 0;  ///< names that got no id since the last call of evict()
  uint64_t numUses_ = 0;     ///< number of operations in all responses so far
  /// For each class: one of its operations, and its number (Record::fusionClass). fusionClassOf() clears the list when
  /// it has kMaxFusionClasses entries. A class that occurs again afterwards gets a new number.
  std::vector<std::pair<named::AgreementHandle, uint32_t>> fusionClasses_;
  uint32_t lastFusionClass_ = 0;  ///< the last number that a class got
};

}  // namespace agspeed::comm::coordinator
