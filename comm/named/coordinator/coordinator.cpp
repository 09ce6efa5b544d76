// SPDX-License-Identifier: Apache-2.0
#include "comm/named/coordinator/coordinator.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <utility>

namespace agspeed::comm::coordinator {

Coordinator::Coordinator(int size, size_t cacheCapacity, FusionPlan plan)
    : size_(size),
      ids_(size, cacheCapacity),
      batches_(size),
      ready_(plan),
      pool_(size),
      hasJoined_(static_cast<size_t>(size), false) {}

void Coordinator::setPlan(FusionPlan plan) {
  ready_.setPlan(plan, ids_, [this](const Batch& batch) { return entriesOf(batch); });
}

// --- submissions

void Coordinator::add(int rank, named::Request request, io::Clock::time_point now) {
  if (request.kind == named::NamedKind::kJoin) return join(rank);
  add(rank, std::make_shared<const named::Request>(std::move(request)), 0, now);
}

Status Coordinator::addCached(int rank, const std::vector<uint32_t>& ids, io::Clock::time_point now) {
  Batch* batch = batches_.find(ids, rank);
  if (batch == nullptr) batch = newBatch(ids, now);
  if (batch != nullptr) {
    addSubmission(*batch, rank);
    return {};
  }
  for (const uint32_t id : ids) {
    if (Status status = addCached(rank, id, now); !status.isOk()) return status;
  }
  return {};
}

Status Coordinator::addCached(int rank, uint32_t id, io::Clock::time_point now) {
  RequestHandle request = ids_.request(rank, id);
  if (request == nullptr) return dataLoss("rank {} refers to request {}, which it has never made", rank, id);
  if (batches_.contains(id) && batches_.findWaiting(id) == nullptr) {
    return dataLoss("rank {} refers to request {} again, which has not run yet", rank, id);
  }
  add(rank, std::move(request), ids_.isEvicted(id) ? 0 : id, now);
  return {};
}

void Coordinator::add(int rank, RequestHandle request, uint32_t sentId, io::Clock::time_point now) {
  const uint32_t id = sentId != 0 ? sentId : ids_.find(request->name);
  if (Batch* batch = id != 0 ? batches_.findWaiting(id) : nullptr) split(*batch);
  Entry* entry = waiting_.find(id, request->name);
  if (entry == nullptr) entry = &waiting_.add(id, request->name, pool_.make(sentId, now));
  if (entry->id != sentId) entry->id = 0;
  RequestHandle& own = entry->requests[static_cast<size_t>(rank)];
  if (own == nullptr) ++entry->numSubmitted;
  own = std::move(request);
  if (isReady(*entry)) ready_.push(waiting_.take(id, own->name), ids_);
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

Batch* Coordinator::newBatch(const std::vector<uint32_t>& ids, io::Clock::time_point now) {
  if (ids.size() < 2 || numJoined_ > 0) return nullptr;
  const std::optional<size_t> numBytes = ids_.fusedBytes(ids);
  if (!numBytes || !ready_.runsWhole(*numBytes)) return nullptr;
  if (std::any_of(ids.begin(), ids.end(), [this](uint32_t id) { return waiting_.contains(id); })) return nullptr;
  return batches_.add(ids, *numBytes, now);
}

void Coordinator::addSubmission(Batch& batch, int rank) {
  batch.hasSubmitted[static_cast<size_t>(rank)] = true;
  if (++batch.numSubmitted < size_) return;
  BatchHandle whole = batches_.take(batch);
  if (!ready_.runsWhole(whole->numBytes)) {
    for (EntryHandle& entry : entriesOf(*whole)) ready_.push(std::move(entry), ids_);
    return;
  }
  EntryHandle entry = pool_.make(whole->ids[0], whole->since);
  entry->requests[0] = ids_.request(0, whole->ids[0]);
  entry->numSubmitted = size_;
  entry->batch = std::move(whole);
  ready_.push(std::move(entry), ids_);
}

void Coordinator::split(Batch& batch) {
  const BatchHandle whole = batches_.take(batch);
  std::vector<EntryHandle> entries = entriesOf(*whole);
  for (size_t i = 0; i < entries.size(); ++i) {
    waiting_.add(whole->ids[i], ids_.name(whole->ids[i]), std::move(entries[i]));
  }
}

std::vector<EntryHandle> Coordinator::entriesOf(const Batch& batch) {
  std::vector<EntryHandle> entries;
  entries.reserve(batch.ids.size());
  for (const uint32_t id : batch.ids) {
    batches_.release(id);
    Entry& entry = *entries.emplace_back(pool_.make(id, batch.since));
    for (size_t rank = 0; rank < batch.hasSubmitted.size(); ++rank) {
      if (batch.hasSubmitted[rank]) entry.requests[rank] = ids_.request(static_cast<int>(rank), id);
    }
    entry.numSubmitted = batch.numSubmitted;
  }
  return entries;
}

// --- responses

bool Coordinator::isResponseDue(const RunningResponses& running, io::Clock::time_point now) {
  return ready_.isResponseDue(running, areAwaited(), now);
}

named::Response Coordinator::next() {
  EntryHandle entry = ready_.pop();
  named::Response response = responseFor(*entry);
  const bool isFused = response.error.empty() && isFusable(response.kind) && !entry->isLargeTensor();
  const size_t numBytes = entry->numBytes;
  pool_.recycle(std::move(entry));
  if (isFused) fuse(response, numBytes);
  response.evicted = ids_.evict([this](uint32_t id) { return batches_.contains(id); });
  // Ranks may have sent an evicted id for an operation that has no response yet. The id may soon belong to another
  // name. So treat these requests as if they had been sent in full.
  for (const uint32_t id : response.evicted) {
    waiting_.forgetId(id, ids_.name(id));
    ready_.forgetId(id);
  }
  return response;
}

bool Coordinator::isKnownToAgree(const Entry& entry) const {
  return entry.id != 0 && entry.numSubmitted == size_ && ids_.isOfAll(entry.id);
}

named::Response Coordinator::responseFor(const Entry& entry) {
  named::Response response;
  response.kind = firstOf(entry.requests).kind;
  if (response.kind == named::NamedKind::kJoin) {
    response.lastJoined = entry.requests[0]->root;
    return response;
  }
  if (auto mismatch = isKnownToAgree(entry) ? std::nullopt : findMismatch(entry.requests)) {
    response.error = std::move(*mismatch);
    response.areKindsDifferent =
        std::any_of(entry.requests.begin(), entry.requests.end(),
                    [&](const RequestHandle& each) { return each != nullptr && each->kind != response.kind; });
    auto named = std::make_shared<named::Agreement>();
    named->request.name = firstOf(entry.requests).name;
    response.items.push_back({0, true, std::move(named)});
    return response;
  }
  addItems(entry, response);
  return response;
}

void Coordinator::fuse(named::Response& response, size_t numBytes) {
  if (numBytes >= ready_.plan().fusionBytes) return;
  const named::AgreementHandle first = response.items[0].agreement;
  const auto isWanted = [&](const Entry& entry) {
    return canFuse(first->request, firstOf(entry.requests)) && (isKnownToAgree(entry) || !findMismatch(entry.requests));
  };
  for (EntryHandle& entry : ready_.popFitting(ready_.plan().fusionBytes - numBytes, isWanted)) {
    addItems(*entry, response);
    pool_.recycle(std::move(entry));
  }
}

void Coordinator::addItems(const Entry& entry, named::Response& response) {
  if (entry.batch == nullptr) {
    response.items.push_back(isKnownToAgree(entry) ? named::Response::Item{entry.id, false, ids_.use(entry.id)}
                                                   : ids_.keep(entry.requests, entry.numBytes));
    return;
  }
  response.items.reserve(response.items.size() + entry.batch->ids.size());
  for (const uint32_t id : entry.batch->ids) {
    batches_.release(id);
    const named::AgreementHandle& agreement = ids_.use(id);
    response.items.push_back({id, false, response.items.empty() ? agreement : nullptr});
  }
}

// --- ranks that join or are awaited

void Coordinator::join(int rank) {
  while (!batches_.waiting().empty()) split(*batches_.waiting().front());
  hasJoined_[static_cast<size_t>(rank)] = true;
  ++numJoined_;
  lastJoined_ = rank;
  for (EntryHandle& entry : waiting_.takeIf([this](const Entry& each) { return isReady(each); })) {
    ready_.push(std::move(entry), ids_);
  }
  if (numJoined_ < size_) return;
  named::Request request;
  request.kind = named::NamedKind::kJoin;
  request.root = lastJoined_;
  request.priority = std::numeric_limits<int32_t>::min();  // runs after all earlier operations
  EntryHandle entry = pool_.make(0, {});
  entry->requests.assign(1, std::make_shared<const named::Request>(std::move(request)));
  ready_.push(std::move(entry), ids_);
  hasJoined_.assign(hasJoined_.size(), false);
  numJoined_ = 0;
}

std::vector<int> Coordinator::unjoined() const {
  std::vector<int> ranks;
  for (int rank = 0; rank < size_ && numJoined_ > 0; ++rank) {
    if (!hasJoined_[static_cast<size_t>(rank)]) ranks.push_back(rank);
  }
  return ranks;
}

std::vector<Coordinator::Stalled> Coordinator::stalled(io::Clock::time_point since) const {
  std::vector<Stalled> found;
  const auto addIfStalled = [&](const std::string& name, io::Clock::time_point from, const auto& hasSubmitted) {
    if (from > since) return;
    Stalled& stalled = found.emplace_back(Stalled{name, {}, from});
    for (int rank = 0; rank < size_; ++rank) {
      const auto at = static_cast<size_t>(rank);
      if (!hasSubmitted(at) && !hasJoined_[at]) stalled.missing.push_back(rank);
    }
  };
  waiting_.forEach([&](const Entry& entry) {
    addIfStalled(firstOf(entry.requests).name, entry.since,
                 [&](size_t rank) { return entry.requests[rank] != nullptr; });
  });
  for (const BatchHandle& batch : batches_.waiting()) {
    for (const uint32_t id : batch->ids) {
      addIfStalled(ids_.name(id), batch->since, [&](size_t rank) { return batch->hasSubmitted[rank]; });
    }
  }
  std::sort(found.begin(), found.end(), [](const Stalled& left, const Stalled& right) {
    return left.since < right.since || (left.since == right.since && left.name < right.name);
  });
  return found;
}

}  // namespace agspeed::comm::coordinator
