// SPDX-License-Identifier: Apache-2.0
// IdCache: the coordinator's ids, which are short numbers for names whose requests repeat.
//
// The first response that runs a name gives it an id. From then on, a rank whose request has not changed sends only the
// id, and responses contain only the id. When all ids are taken, an id that was not used for long is evicted. A
// response announces the eviction to the ranks. When each rank has confirmed the eviction, the id is free.
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

  // The next four functions require that the id stands for a name, or is evicted.
  const std::string& name(uint32_t id) const { return records_[id - 1].name; }
  bool isEvicted(uint32_t id) const { return records_[id - 1].isEvicted; }
  /// Returns whether all ranks had submitted a request for the last response with this id.
  bool isOfAll(uint32_t id) const { return records_[id - 1].isOfAll; }
  /// Records that a response runs the name's operation unchanged. Returns the agreement of its requests.
  const named::AgreementHandle& use(uint32_t id);

  /// Returns the response's item for an operation whose requests agree. Gives its name an id if possible, and stores
  /// the requests under the id.
  named::Response::Item keep(const Requests& requests, size_t numBytes);
  /// Evicts ids. It evicts at most as many ids as keep() could not assign since the last call. Evicts only ids that
  /// have not been used lately and for which `isInUse` returns false. Returns the evicted ids.
  std::vector<uint32_t> evict(const std::function<bool(uint32_t id)>& isInUse);
  /// Records that `rank` no longer uses an evicted id. Frees the id once all ranks have confirmed this. Fails with data
  /// loss if the id is not evicted.
  Status drop(int rank, uint32_t id);

 private:
  /// An id, with the name for which it stands, and its last requests and agreement.
  struct Record {
    size_t numBytes = 0;   ///< bytes of all tensors of `agreement`
    uint32_t alike = 0;    ///< the class of operations that can be fused with each other; 0: never fused
    bool isOfAll = false;  ///< all ranks had submitted a request for the last response
    bool isEvicted = false;
    int numForgotten = 0;              ///< number of ranks that have confirmed the eviction
    uint64_t lastUse = 0;              ///< the value of numUses_ when the id was last used
    named::AgreementHandle agreement;  ///< the agreement in the last response with this id
    Requests requests;                 ///< by rank: its request in the last response with this id
    std::string name;
  };

  /// Returns Record::alike for an operation with this agreement. A class that is not in `examples_` gets a new number.
  uint32_t alikeOf(const named::AgreementHandle& agreement, size_t numBytes);
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
  /// For each class of operations that can be fused with each other: one example, and the number of the class
  /// (Record::alike). alikeOf() clears the list when it has kMaxExamples entries. If a class occurs again afterwards,
  /// it gets a new number.
  std::vector<std::pair<named::AgreementHandle, uint32_t>> examples_;
  uint32_t numExamples_ = 0;  ///< the highest number of a class so far
};

}  // namespace agspeed::comm::coordinator
