// SPDX-License-Identifier: Apache-2.0
// Operations that some ranks have submitted and others have not: by name, by id, and in batches of ids.
#include <algorithm>
#include <limits>
#include <utility>

#include "comm/named/coordinator.h"

namespace agspeed::comm {

// --- submissions

void Coordinator::add(int rank, Request request, Clock::time_point now) {
  if (request.kind == NamedKind::kJoin) return join(rank);
  add(rank, std::make_shared<const Request>(std::move(request)), 0, now);
}

Status Coordinator::addCached(int rank, const std::vector<uint32_t>& ids, Clock::time_point now) {
  const auto same = std::find_if(batches_.begin(), batches_.end(), [&](const BatchHandle& each) {
    return each->ids == ids && !each->hasSaid[static_cast<size_t>(rank)];
  });
  if (same != batches_.end()) {
    said(**same, rank);
    return {};
  }
  if (BatchHandle made = newBatch(ids, now)) {
    said(*batches_.emplace_back(std::move(made)), rank);
    return {};
  }
  for (const uint32_t id : ids) {
    if (Status status = addCached(rank, id, now); !status) return status;
  }
  return {};
}

Status Coordinator::addCached(int rank, uint32_t id, Clock::time_point now) {
  if (cachedRequest(rank, id) == nullptr) {
    return dataLoss("rank {} refers to request {}, which it has never made", rank, id);
  }
  const Cached& cached = cache_[id - 1];
  if (cached.batch != nullptr && cached.batch->numSaid == size_) {
    return dataLoss("rank {} refers to request {} again, which has yet to run", rank, id);
  }
  add(rank, cached.requests[static_cast<size_t>(rank)], cached.isEvicted ? 0 : id, now);
  return {};
}

const Request* Coordinator::cachedRequest(int rank, uint32_t id) const {
  return id == 0 || id > cache_.size() ? nullptr : cache_[id - 1].requests[static_cast<size_t>(rank)].get();
}

void Coordinator::add(int rank, Handle request, uint32_t cachedId, Clock::time_point now) {
  const uint32_t id = idOf(request->name, cachedId);
  if (Batch* batch = id != 0 ? cache_[id - 1].batch : nullptr; batch != nullptr && batch->numSaid < size_)
    split(*batch);
  EntryHandle& waiting = id != 0 ? cache_[id - 1].waiting : table_[request->name];
  if (waiting == nullptr) {
    waiting = newEntry(cachedId, now);
    ++numWaiting_;
  }
  Entry& entry = *waiting;
  if (entry.cachedId != cachedId) entry.cachedId = 0;
  Handle& own = entry.requests[static_cast<size_t>(rank)];
  if (own == nullptr) ++entry.numSubmitted;
  own = std::move(request);
  if (!isReady(entry)) return;
  EntryHandle ready = std::move(waiting);
  --numWaiting_;
  if (id == 0) table_.erase(own->name);
  makeReady(std::move(ready));
}

uint32_t Coordinator::idOf(const std::string& name, uint32_t cachedId) const {
  if (cachedId != 0) return cachedId;
  const auto found = ids_.find(name);
  return found == ids_.end() ? 0 : found->second;
}

Coordinator::EntryHandle Coordinator::newEntry(uint32_t cachedId, Clock::time_point now) {
  EntryHandle entry;
  if (spare_.empty()) {
    entry = std::make_unique<Entry>();
  } else {
    entry = std::move(spare_.back());
    spare_.pop_back();
  }
  entry->requests.resize(static_cast<size_t>(size_));
  entry->cachedId = cachedId;
  entry->order = ++numEntries_;
  entry->since = now;
  return entry;
}

bool Coordinator::isReady(const Entry& entry) const {
  if (entry.numSubmitted == size_) return true;
  if (entry.numSubmitted + numJoined_ < size_) return false;
  for (size_t rank = 0; rank < hasJoined_.size(); ++rank) {
    if (entry.requests[rank] == nullptr && !hasJoined_[rank]) return false;
  }
  return true;
}

// --- batches

bool Coordinator::runsWhole(size_t numBytes) const {
  const bool isInOrder = plan_.order == FusionOrder::kTime || plan_.order == FusionOrder::kSize;
  return isInOrder && numBytes <= plan_.fusionBytes;
}

Coordinator::BatchHandle Coordinator::newBatch(const std::vector<uint32_t>& ids, Clock::time_point now) {
  if (ids.size() < 2 || numJoined_ > 0) return nullptr;
  size_t numBytes = 0;
  for (const uint32_t id : ids) {
    if (id == 0 || id > cache_.size()) return nullptr;
    const Cached& cached = cache_[id - 1];
    if (!cached.isBatchable() || cached.alike != cache_[ids[0] - 1].alike) return nullptr;
    numBytes += cached.numBytes;
  }
  if (!runsWhole(numBytes)) return nullptr;
  auto batch = std::make_unique<Batch>();
  for (const uint32_t id : ids) {
    if (std::exchange(cache_[id - 1].batch, batch.get()) == nullptr) continue;
    for (const uint32_t each : ids) cache_[each - 1].batch = nullptr;  // an id was twice in the list
    return nullptr;
  }
  batch->ids = ids;
  batch->hasSaid.assign(static_cast<size_t>(size_), false);
  batch->numBytes = numBytes;
  batch->since = now;
  numWaiting_ += ids.size();
  return batch;
}

void Coordinator::said(Batch& batch, int rank) {
  batch.hasSaid[static_cast<size_t>(rank)] = true;
  if (++batch.numSaid < size_) return;
  numWaiting_ -= batch.ids.size();
  BatchHandle whole = takeBatch(batch);
  if (!runsWhole(whole->numBytes)) {
    for (const uint32_t id : whole->ids) makeReady(entryOf(*whole, id));
    return;
  }
  EntryHandle entry = newEntry(whole->ids[0], whole->since);
  entry->requests[0] = cache_[whole->ids[0] - 1].requests[0];
  entry->numSubmitted = size_;
  entry->batch = std::move(whole);
  makeReady(std::move(entry));
}

void Coordinator::split(Batch& batch) {
  const BatchHandle whole = takeBatch(batch);
  for (const uint32_t id : whole->ids) cache_[id - 1].waiting = entryOf(*whole, id);
}

Coordinator::BatchHandle Coordinator::takeBatch(const Batch& batch) {
  const auto at =
      std::find_if(batches_.begin(), batches_.end(), [&](const BatchHandle& each) { return each.get() == &batch; });
  BatchHandle taken = std::move(*at);
  batches_.erase(at);
  return taken;
}

Coordinator::EntryHandle Coordinator::entryOf(const Batch& batch, uint32_t id) {
  Cached& cached = cache_[id - 1];
  cached.batch = nullptr;
  EntryHandle entry = newEntry(id, batch.since);
  for (size_t rank = 0; rank < batch.hasSaid.size(); ++rank) {
    if (batch.hasSaid[rank]) entry->requests[rank] = cached.requests[rank];
  }
  entry->numSubmitted = batch.numSaid;
  return entry;
}

// --- ranks that join or are awaited

void Coordinator::join(int rank) {
  while (!batches_.empty()) split(*batches_.front());
  hasJoined_[static_cast<size_t>(rank)] = true;
  ++numJoined_;
  lastJoined_ = rank;
  moveReady();
  if (numJoined_ < size_) return;
  Request request;
  request.kind = NamedKind::kJoin;
  request.root = lastJoined_;
  request.priority = std::numeric_limits<int32_t>::min();  // after all operations that came before it
  EntryHandle entry = newEntry(0, {});
  entry->requests.assign(1, std::make_shared<const Request>(std::move(request)));
  makeReady(std::move(entry));
  hasJoined_.assign(hasJoined_.size(), false);
  numJoined_ = 0;
}

void Coordinator::moveReady() {
  std::vector<EntryHandle> found;
  const auto takeIfReady = [&](EntryHandle& waiting) {
    if (waiting != nullptr && isReady(*waiting)) found.push_back(std::move(waiting));
  };
  for (auto& [name, waiting] : table_) takeIfReady(waiting);
  std::erase_if(table_, [](const auto& each) { return each.second == nullptr; });
  for (Cached& cached : cache_) takeIfReady(cached.waiting);
  numWaiting_ -= found.size();
  std::sort(found.begin(), found.end(),
            [](const EntryHandle& left, const EntryHandle& right) { return left->order < right->order; });
  for (EntryHandle& entry : found) makeReady(std::move(entry));
}

std::vector<int> Coordinator::unjoined() const {
  std::vector<int> ranks;
  for (int rank = 0; rank < size_ && numJoined_ > 0; ++rank) {
    if (!hasJoined_[static_cast<size_t>(rank)]) ranks.push_back(rank);
  }
  return ranks;
}

std::vector<Coordinator::Stalled> Coordinator::stalled(Clock::time_point since) const {
  std::vector<Stalled> found;
  const auto note = [&](const std::string& name, Clock::time_point from, const auto& hasSubmitted) {
    if (from > since) return;
    Stalled& stalled = found.emplace_back(Stalled{name, {}, from});
    for (int rank = 0; rank < size_; ++rank) {
      const auto at = static_cast<size_t>(rank);
      if (!hasSubmitted(at) && !hasJoined_[at]) stalled.missing.push_back(rank);
    }
  };
  const auto look = [&](const EntryHandle& entry) {
    if (entry == nullptr) return;
    note(firstOf(entry->requests).name, entry->since, [&](size_t rank) { return entry->requests[rank] != nullptr; });
  };
  for (const auto& [name, entry] : table_) look(entry);
  for (const Cached& cached : cache_) look(cached.waiting);
  for (const BatchHandle& batch : batches_) {
    for (const uint32_t id : batch->ids) {
      note(cache_[id - 1].name, batch->since, [&](size_t rank) { return batch->hasSaid[rank]; });
    }
  }
  std::sort(found.begin(), found.end(), [](const Stalled& left, const Stalled& right) {
    return left.since < right.since || (left.since == right.since && left.name < right.name);
  });
  return found;
}

}  // namespace agspeed::comm
