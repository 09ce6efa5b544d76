// SPDX-License-Identifier: Apache-2.0
#include "comm/named/coordinator.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace agspeed::comm {
namespace {

/// How many fused responses may move data. Further operations wait and are fused. The limit is higher for full buffers,
/// because these gain nothing by waiting: one moves while others are packed and unpacked.
constexpr size_t kMaxRunning = 2, kMaxRunningFull = 4;
/// A tensor of kLargeBytes or more runs alone, on the caller's memory. Several of them run at a time, up to these
/// limits, so that the network does not idle until the coordinator responds again.
constexpr size_t kLargeBytes = size_t{512} << 10;
constexpr size_t kMaxRunningLarge = 16, kMaxRunningLargeBytes = size_t{16} << 20;
/// How long FusionOrder::kSize holds a buffer that is not full.
constexpr std::chrono::milliseconds kMaxHold{2};
/// An id is evicted if kIdleTurns * capacity operations ran since its last use. So names that take turns keep their ids
/// even if there are somewhat more names than ids.
constexpr uint64_t kIdleTurns = 4;
constexpr size_t kMaxExamples = 64;

/// The weight of an operation in readyBytes().
size_t weightOf(size_t numBytes) { return std::max<size_t>(1, numBytes); }

}  // namespace

bool canFuse(const Request& left, const Request& right) {
  if (left.kind != NamedKind::kAllReduce && left.kind != NamedKind::kBroadcast) return false;
  return left.kind == right.kind && left.dtype == right.dtype && left.reduction == right.reduction &&
         left.root == right.root && left.prescale == right.prescale && left.postscale == right.postscale &&
         left.isOnDevice == right.isOnDevice;
}

const Request& firstOf(const std::vector<std::shared_ptr<const Request>>& requests) {
  return **std::find_if(requests.begin(), requests.end(), [](const auto& each) { return each != nullptr; });
}

bool runsAlone(const Request& request, size_t numBytes) {
  return request.shapes.size() == 1 && numBytes >= kLargeBytes;
}

std::string_view toString(FusionOrder order) {
  switch (order) {
    case FusionOrder::kTime: return "time";
    case FusionOrder::kSize: return "size";
    case FusionOrder::kPriority: return "priority";
    case FusionOrder::kModel: return "model";
  }
  return "unknown order";
}

Coordinator::Coordinator(int size, size_t cacheCapacity, FusionPlan plan)
    : size_(size), cacheCapacity_(cacheCapacity), plan_(plan), hasJoined_(static_cast<size_t>(size), false) {}

void Coordinator::Running::began(const Request& first) {
  const size_t numBytes = bytesOf(first);
  if (!runsAlone(first, numBytes)) {
    ++numOther;
    return;
  }
  ++numLarge;
  largeBytes += numBytes;
}

void Coordinator::Running::ended(const Request& first) {
  const size_t numBytes = bytesOf(first);
  if (!runsAlone(first, numBytes)) {
    --numOther;
    return;
  }
  --numLarge;
  largeBytes -= numBytes;
}

void Coordinator::setPlan(FusionPlan plan) {
  plan_ = plan;
  for (EntryHandle& entry : std::exchange(ready_, {})) {
    const BatchHandle batch = entry->batch == nullptr || runsWhole(entry->numBytes) ? nullptr : std::move(entry->batch);
    if (batch == nullptr) {
      ready_.push_back(std::move(entry));
      continue;
    }
    for (const uint32_t id : batch->ids) {
      ready_.push_back(entryOf(*batch, id));
      ready_.back()->order = entry->order;
      ready_.back()->numBytes = bytesOf(firstOf(ready_.back()->requests));
    }
  }
  for (const EntryHandle& entry : ready_) entry->place = placeOf(*entry);
  std::stable_sort(ready_.begin(), ready_.end(),
                   [](const EntryHandle& left, const EntryHandle& right) { return left->place < right->place; });
}

Status Coordinator::dropId(int rank, uint32_t id) {
  if (id == 0 || id > cache_.size() || !cache_[id - 1].isEvicted) {
    return dataLoss("rank {} has forgotten request {}, which is not evicted", rank, id);
  }
  Cached& cached = cache_[id - 1];
  if (++cached.numForgotten < size_) return {};
  cached = {};
  cached.requests.resize(static_cast<size_t>(size_));
  freeIds_.push_back(id);
  return {};
}

void Coordinator::recycle(EntryHandle entry) {
  entry->requests.clear();
  entry->numSubmitted = 0;
  entry->batch = nullptr;
  spare_.push_back(std::move(entry));
}

bool Coordinator::isKnownToAgree(const Entry& entry) const {
  return entry.cachedId != 0 && entry.numSubmitted == size_ && cache_[entry.cachedId - 1].isOfAll;
}

int64_t Coordinator::placeOf(const Entry& entry) const {
  switch (plan_.order) {
    case FusionOrder::kTime:
    case FusionOrder::kSize: return static_cast<int64_t>(entry.order);
    case FusionOrder::kPriority: return -int64_t{firstOf(entry.requests).priority};
    case FusionOrder::kModel: {
      const uint32_t id = idOf(firstOf(entry.requests).name, entry.cachedId);
      return id == 0 ? std::numeric_limits<int64_t>::max() : int64_t{id};
    }
  }
  return 0;
}

void Coordinator::makeReady(EntryHandle entry) {
  entry->numBytes = entry->batch != nullptr ? entry->batch->numBytes : bytesOf(firstOf(entry->requests));
  readyBytes_ += weightOf(entry->numBytes);
  entry->order = ++numEntries_;
  entry->place = placeOf(*entry);
  const auto at = std::upper_bound(ready_.begin(), ready_.end(), entry->place,
                                   [](int64_t place, const EntryHandle& other) { return place < other->place; });
  ready_.insert(at, std::move(entry));
}

Coordinator::EntryHandle Coordinator::takeReady() {
  EntryHandle entry = std::move(ready_.front());
  ready_.pop_front();
  return entry;
}

size_t Coordinator::readyBytes() const { return readyBytes_; }

bool Coordinator::isResponseDue(const Running& running, Clock::time_point now) {
  if (readyBytes_ == 0) return false;
  const bool isFull = readyBytes_ >= plan_.fusionBytes;
  const bool isAlone = standsAlone(*ready_.front());
  const bool isEnough = isAlone ? running.numLarge >= kMaxRunningLarge || running.largeBytes >= kMaxRunningLargeBytes
                                : running.numOther >= (isFull ? kMaxRunningFull : kMaxRunning);
  if (isEnough && plan_.fusionBytes > 0) return false;
  // It is not held if nothing else is awaited: the callers that submitted it wait for this response.
  const bool isHeld = plan_.order == FusionOrder::kSize && !isFull && !isAlone && numWaiting_ > 0;
  if (!isHeld) {
    heldUntil_ = Clock::time_point::max();
    return true;
  }
  if (heldUntil_ == Clock::time_point::max()) heldUntil_ = now + kMaxHold;
  if (now < heldUntil_) return false;
  heldUntil_ = Clock::time_point::max();
  return true;
}

Response Coordinator::next() {
  EntryHandle entry = takeReady();
  readyBytes_ -= weightOf(entry->numBytes);
  Response response = responseFor(*entry);
  const bool isFusable = response.error.empty() && !standsAlone(*entry);
  const size_t numBytes = entry->numBytes;
  recycle(std::move(entry));
  if (isFusable) fuse(response, numBytes);
  for (; numWithoutId_ > 0; --numWithoutId_) evictOne();  // after fuse(): ready_ is complete again
  response.evicted = std::exchange(evicted_, {});
  return response;
}

bool Coordinator::standsAlone(const Entry& entry) {
  return entry.batch == nullptr && runsAlone(firstOf(entry.requests), entry.numBytes);
}

Response Coordinator::responseFor(const Entry& entry) {
  Response response;
  response.kind = firstOf(entry.requests).kind;
  if (response.kind == NamedKind::kJoin) {
    response.lastJoined = entry.requests[0]->root;
    return response;
  }
  if (auto mismatch = isKnownToAgree(entry) ? std::nullopt : findMismatch(entry.requests)) {
    response.error = std::move(*mismatch);
    response.areKindsDifferent = std::any_of(entry.requests.begin(), entry.requests.end(), [&](const Handle& each) {
      return each != nullptr && each->kind != response.kind;
    });
    auto named = std::make_shared<Agreement>();
    named->request.name = firstOf(entry.requests).name;
    response.items.push_back({0, true, std::move(named)});
    return response;
  }
  addItems(entry, response);
  return response;
}

void Coordinator::fuse(Response& response, size_t numBytes) {
  if (response.kind != NamedKind::kAllReduce && response.kind != NamedKind::kBroadcast) return;
  const AgreementHandle agreement = response.items[0].agreement;
  const Request& first = agreement->request;
  // Operations that cannot be fused keep their order.
  std::deque<EntryHandle> left;
  while (!ready_.empty() && numBytes < plan_.fusionBytes) {
    EntryHandle entry = takeReady();
    const Request& other = firstOf(entry->requests);
    const bool fits = numBytes + entry->numBytes <= plan_.fusionBytes;
    if (!fits || standsAlone(*entry) || !canFuse(first, other) ||
        (!isKnownToAgree(*entry) && findMismatch(entry->requests))) {
      left.push_back(std::move(entry));
      continue;
    }
    numBytes += entry->numBytes;
    readyBytes_ -= weightOf(entry->numBytes);
    addItems(*entry, response);
    recycle(std::move(entry));
  }
  ready_.insert(ready_.begin(), std::make_move_iterator(left.begin()), std::make_move_iterator(left.end()));
}

void Coordinator::addItems(const Entry& entry, Response& response) {
  if (entry.batch == nullptr) return response.items.push_back(itemFor(entry));
  response.items.reserve(response.items.size() + entry.batch->ids.size());
  for (const uint32_t id : entry.batch->ids) {
    Cached& cached = cache_[id - 1];
    cached.batch = nullptr;
    cached.lastUse = ++numItems_;
    response.items.push_back({id, false, response.items.empty() ? cached.agreement : nullptr});
  }
}

Response::Item Coordinator::itemFor(const Entry& entry) {
  ++numItems_;
  if (isKnownToAgree(entry)) {
    Cached& cached = cache_[entry.cachedId - 1];
    cached.lastUse = numItems_;
    return {entry.cachedId, false, cached.agreement};
  }
  Response::Item item;
  item.agreement = agreementOf(entry.requests);
  if (!item.agreement->request.isCacheable) return item;
  const std::string& name = item.agreement->request.name;
  const auto found = ids_.find(name);
  item.cacheId = found != ids_.end() ? found->second : newIdFor(name);
  if (item.cacheId == 0) return item;
  Cached& cached = cache_[item.cacheId - 1];
  cached.lastUse = numItems_;
  cached.isOfAll = entry.numSubmitted == size_;
  for (size_t rank = 0; rank < entry.requests.size(); ++rank) {
    if (entry.requests[rank] != nullptr) cached.requests[rank] = entry.requests[rank];
  }
  item.isFull = cached.agreement == nullptr || !(*cached.agreement == *item.agreement);
  cached.agreement = item.agreement;
  cached.numBytes = entry.numBytes;
  cached.alike = alikeOf(item.agreement, entry.numBytes);
  return item;
}

uint32_t Coordinator::alikeOf(const AgreementHandle& agreement, size_t numBytes) {
  const Request& request = agreement->request;
  if (numBytes == 0 || runsAlone(request, numBytes) || !canFuse(request, request)) return 0;
  for (const auto& [example, number] : examples_) {
    if (canFuse(example->request, request)) return number;
  }
  if (examples_.size() == kMaxExamples) examples_.clear();  // numbers are not used again
  examples_.emplace_back(agreement, ++numExamples_);
  return numExamples_;
}

uint32_t Coordinator::newIdFor(const std::string& name) {
  uint32_t id = 0;
  if (!freeIds_.empty()) {
    id = freeIds_.back();
    freeIds_.pop_back();
  } else if (cache_.size() < cacheCapacity_) {
    cache_.emplace_back().requests.resize(static_cast<size_t>(size_));
    id = static_cast<uint32_t>(cache_.size());
  } else {
    ++numWithoutId_;
    return 0;
  }
  cache_[id - 1].name = name;
  ids_[name] = id;
  return id;
}

void Coordinator::evictOne() {
  const auto oldest = std::min_element(cache_.begin(), cache_.end(), [](const Cached& left, const Cached& right) {
    return std::pair(!left.isEvictable(), left.lastUse) < std::pair(!right.isEvictable(), right.lastUse);
  });
  if (oldest == cache_.end() || !oldest->isEvictable() || oldest->lastUse + kIdleTurns * cacheCapacity_ > numItems_)
    return;
  const auto id = static_cast<uint32_t>(oldest - cache_.begin()) + 1;
  oldest->isEvicted = true;
  ids_.erase(oldest->name);
  evicted_.push_back(id);
  // Requests that were sent by this id continue as if sent in full, because the id may soon belong to another name.
  if (oldest->waiting != nullptr) {
    oldest->waiting->cachedId = 0;
    table_[oldest->name] = std::move(oldest->waiting);
  }
  for (const EntryHandle& entry : ready_) {
    if (entry->cachedId == id) entry->cachedId = 0;
  }
}

}  // namespace agspeed::comm
