// SPDX-License-Identifier: Apache-2.0
#include "comm/named/coordinator/id_cache.h"

#include <algorithm>

#include "comm/named/coordinator/fusion.h"

namespace agspeed::comm::coordinator {
namespace {

/// An id may be evicted if kIdleTurns * capacity operations have run since its last use. Example: a job uses somewhat
/// more names than there are ids, one after the other. Without this rule, it would evict an id for nearly every
/// operation.
constexpr uint64_t kIdleTurns = 4;
constexpr size_t kMaxFusionClasses = 64;

}  // namespace

uint32_t IdCache::find(const std::string& name) const {
  const auto found = ids_.find(name);
  return found == ids_.end() ? 0 : found->second;
}

RequestHandle IdCache::request(int rank, uint32_t id) const {
  return id == 0 || id > records_.size() ? nullptr : records_[id - 1].requests[static_cast<size_t>(rank)];
}

std::optional<size_t> IdCache::fusedBytes(const std::vector<uint32_t>& ids) const {
  size_t numBytes = 0;
  for (const uint32_t id : ids) {
    if (id == 0 || id > records_.size()) return std::nullopt;
    const Record& record = records_[id - 1];
    if (!record.isOfAll || record.isEvicted || record.fusionClass == 0) return std::nullopt;
    if (record.fusionClass != records_[ids[0] - 1].fusionClass) return std::nullopt;
    numBytes += record.numBytes;
  }
  return numBytes;
}

const named::AgreementHandle& IdCache::use(uint32_t id) {
  records_[id - 1].lastUse = ++numUses_;
  return records_[id - 1].agreement;
}

named::Response::Item IdCache::keep(const Requests& requests, size_t numBytes) {
  ++numUses_;
  named::Response::Item item;
  item.agreement = agreementOf(requests);
  if (!item.agreement->request.isCacheable) return item;
  const std::string& name = item.agreement->request.name;
  const uint32_t known = find(name);
  item.id = known != 0 ? known : newIdFor(name);
  if (item.id == 0) return item;
  Record& record = records_[item.id - 1];
  record.lastUse = numUses_;
  record.isOfAll = true;
  for (size_t rank = 0; rank < requests.size(); ++rank) {
    if (requests[rank] != nullptr) record.requests[rank] = requests[rank];
    record.isOfAll &= requests[rank] != nullptr;
  }
  item.isFull = record.agreement == nullptr || !(*record.agreement == *item.agreement);
  record.agreement = item.agreement;
  record.numBytes = numBytes;
  record.fusionClass = fusionClassOf(item.agreement, numBytes);
  return item;
}

uint32_t IdCache::fusionClassOf(const named::AgreementHandle& agreement, size_t numBytes) {
  const named::Request& request = agreement->request;
  if (numBytes == 0 || runsAlone(request, numBytes) || !isFusable(request.kind)) return 0;
  for (const auto& [example, number] : fusionClasses_) {
    if (canFuse(example->request, request)) return number;
  }
  if (fusionClasses_.size() == kMaxFusionClasses) fusionClasses_.clear();
  fusionClasses_.emplace_back(agreement, ++lastFusionClass_);
  return lastFusionClass_;
}

uint32_t IdCache::newIdFor(const std::string& name) {
  uint32_t id = 0;
  if (!freeIds_.empty()) {
    id = freeIds_.back();
    freeIds_.pop_back();
  } else if (records_.size() < capacity_) {
    records_.emplace_back().requests.resize(static_cast<size_t>(numRanks_));
    id = static_cast<uint32_t>(records_.size());
  } else {
    ++numWithoutId_;
    return 0;
  }
  records_[id - 1].name = name;
  ids_[name] = id;
  return id;
}

std::vector<uint32_t> IdCache::evict(const std::function<bool(uint32_t id)>& isInUse) {
  std::vector<uint32_t> evicted;
  for (; numWithoutId_ > 0; --numWithoutId_) {
    if (const uint32_t id = evictOne(isInUse)) evicted.push_back(id);
  }
  return evicted;
}

uint32_t IdCache::evictOne(const std::function<bool(uint32_t id)>& isInUse) {
  uint32_t oldest = 0;
  for (uint32_t id = 1; id <= records_.size(); ++id) {
    const Record& record = records_[id - 1];
    if (record.isEvicted || isInUse(id)) continue;
    if (oldest == 0 || record.lastUse < records_[oldest - 1].lastUse) oldest = id;
  }
  if (oldest == 0 || records_[oldest - 1].lastUse + kIdleTurns * capacity_ > numUses_) return 0;
  records_[oldest - 1].isEvicted = true;
  ids_.erase(records_[oldest - 1].name);
  return oldest;
}

Status IdCache::drop(int rank, uint32_t id) {
  if (id == 0 || id > records_.size() || !records_[id - 1].isEvicted) {
    return dataLoss("rank {} has confirmed the eviction of request {}, which is not evicted", rank, id);
  }
  Record& record = records_[id - 1];
  if (++record.numForgotten < numRanks_) return {};
  record = {};
  record.requests.resize(static_cast<size_t>(numRanks_));
  freeIds_.push_back(id);
  return {};
}

}  // namespace agspeed::comm::coordinator
