// SPDX-License-Identifier: Apache-2.0
#include "comm/named/coordinator.h"

#include <algorithm>
#include <utility>

namespace agspeed::comm {
namespace {

bool canFuse(const Request& left, const Request& right) {
  if (left.kind != NamedKind::kAllReduce && left.kind != NamedKind::kBroadcast) return false;
  return left.kind == right.kind && left.dtype == right.dtype && left.reduction == right.reduction &&
         left.root == right.root && left.prescale == right.prescale && left.postscale == right.postscale &&
         left.isOnDevice == right.isOnDevice;
}

Agreement agreementOf(const std::vector<std::shared_ptr<const Request>>& requests) {
  const auto first = std::find_if(requests.begin(), requests.end(), [](const auto& each) { return each != nullptr; });
  Agreement agreement{**first, {}};
  Request& request = agreement.request;
  if (request.kind == NamedKind::kAllGather) {
    agreement.rows.resize(request.shapes.size());
    for (size_t i = 0; i < request.shapes.size(); ++i) {
      for (const auto& each : requests) agreement.rows[i].push_back(each->shapes[i][0]);
    }
  } else if (request.kind == NamedKind::kAllToAll) {
    for (const auto& each : requests) agreement.rows.push_back(each->splits);
  }
  request.splits.clear();
  return agreement;
}

const Request& firstOf(const std::vector<std::shared_ptr<const Request>>& requests) {
  return **std::find_if(requests.begin(), requests.end(), [](const auto& each) { return each != nullptr; });
}

}  // namespace

Coordinator::Coordinator(int size, size_t cacheCapacity)
    : size_(size), cacheCapacity_(cacheCapacity), hasJoined_(static_cast<size_t>(size), false) {}

void Coordinator::add(int rank, Request request, Clock::time_point now) {
  if (request.kind == NamedKind::kJoin) return join(rank);
  add(rank, std::make_shared<const Request>(std::move(request)), now);
}

Status Coordinator::addCached(int rank, uint32_t id, Clock::time_point now) {
  if (id == 0 || id > cache_.size() || cache_[id - 1].requests[static_cast<size_t>(rank)] == nullptr) {
    return dataLoss("rank {} refers to request {}, which it has never made", rank, id);
  }
  add(rank, cache_[id - 1].requests[static_cast<size_t>(rank)], now);
  return {};
}

void Coordinator::add(int rank, Handle request, Clock::time_point now) {
  const auto [at, isNew] = table_.try_emplace(request->name);
  Entry& entry = at->second;
  if (isNew) {
    entry.name = request->name;
    entry.requests.resize(static_cast<size_t>(size_));
    entry.order = ++numEntries_;
    entry.since = now;
  }
  Handle& own = entry.requests[static_cast<size_t>(rank)];
  if (own == nullptr) ++entry.numSubmitted;
  own = std::move(request);
  if (!isReady(entry)) return;
  readyBytes_ += std::max<size_t>(1, bytesOf(firstOf(entry.requests)));
  ready_.push_back(std::move(entry));
  table_.erase(at);
}

bool Coordinator::isReady(const Entry& entry) const {
  if (entry.numSubmitted == size_) return true;
  if (entry.numSubmitted + numJoined_ < size_) return false;
  for (size_t rank = 0; rank < hasJoined_.size(); ++rank) {
    if (entry.requests[rank] == nullptr && !hasJoined_[rank]) return false;
  }
  return true;
}

void Coordinator::join(int rank) {
  hasJoined_[static_cast<size_t>(rank)] = true;
  ++numJoined_;
  lastJoined_ = rank;
  moveReady();
  if (numJoined_ < size_) return;
  Request request;
  request.kind = NamedKind::kJoin;
  request.root = lastJoined_;
  Entry entry;
  entry.requests.assign(1, std::make_shared<const Request>(std::move(request)));
  ready_.push_back(std::move(entry));
  ++readyBytes_;
  hasJoined_.assign(hasJoined_.size(), false);
  numJoined_ = 0;
}

void Coordinator::moveReady() {
  std::vector<Entry> found;
  for (auto at = table_.begin(); at != table_.end();) {
    if (isReady(at->second)) {
      found.push_back(std::move(at->second));
      at = table_.erase(at);
    } else {
      ++at;
    }
  }
  std::sort(found.begin(), found.end(), [](const Entry& left, const Entry& right) { return left.order < right.order; });
  for (Entry& entry : found) {
    readyBytes_ += std::max<size_t>(1, bytesOf(firstOf(entry.requests)));
    ready_.push_back(std::move(entry));
  }
}

size_t Coordinator::readyBytes() const { return readyBytes_; }

Response Coordinator::next(size_t fusionBytes) {
  Entry entry = std::move(ready_.front());
  ready_.pop_front();
  readyBytes_ -= std::max<size_t>(1, bytesOf(firstOf(entry.requests)));
  Response response = responseFor(std::move(entry));
  if (response.error.empty()) fuse(response, fusionBytes);
  return response;
}

Response Coordinator::responseFor(Entry entry) {
  Response response;
  response.kind = firstOf(entry.requests).kind;
  if (response.kind == NamedKind::kJoin) {
    response.lastJoined = entry.requests[0]->root;
    return response;
  }
  if (auto mismatch = findMismatch(entry.requests)) {
    response.error = std::move(*mismatch);
    Response::Item item;
    item.agreement.request.name = entry.name;
    response.items.push_back(std::move(item));
    return response;
  }
  response.items.push_back(itemFor(entry));
  return response;
}

void Coordinator::fuse(Response& response, size_t fusionBytes) {
  if (response.kind != NamedKind::kAllReduce && response.kind != NamedKind::kBroadcast) return;
  const Request first = response.items[0].agreement.request;
  size_t numBytes = bytesOf(first);
  // What cannot go along keeps its place among the others.
  for (auto at = ready_.begin(); at != ready_.end() && numBytes < fusionBytes;) {
    const Request& other = firstOf(at->requests);
    const bool fits = numBytes + bytesOf(other) <= fusionBytes;
    if (!canFuse(first, other) || !fits || findMismatch(at->requests)) {
      ++at;
      continue;
    }
    numBytes += bytesOf(other);
    readyBytes_ -= std::max<size_t>(1, bytesOf(other));
    response.items.push_back(itemFor(*at));
    at = ready_.erase(at);
  }
}

Response::Item Coordinator::itemFor(const Entry& entry) {
  Response::Item item;
  item.agreement = agreementOf(entry.requests);
  if (!item.agreement.request.isCacheable) return item;
  const auto found = ids_.find(entry.name);
  if (found == ids_.end() && cache_.size() == cacheCapacity_) return item;
  if (found == ids_.end()) {
    cache_.push_back({std::vector<Handle>(static_cast<size_t>(size_)), {}});
    ids_[entry.name] = static_cast<uint32_t>(cache_.size());
  }
  item.cacheId = ids_[entry.name];
  Cached& cached = cache_[item.cacheId - 1];
  for (size_t rank = 0; rank < entry.requests.size(); ++rank) {
    if (entry.requests[rank] != nullptr) cached.requests[rank] = entry.requests[rank];
  }
  item.isFull = !(cached.agreement == item.agreement);
  cached.agreement = item.agreement;
  return item;
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
  for (const auto& [name, entry] : table_) {
    if (entry.since > since) continue;
    Stalled& stalled = found.emplace_back(Stalled{name, {}, entry.since});
    for (int rank = 0; rank < size_; ++rank) {
      const auto at = static_cast<size_t>(rank);
      if (entry.requests[at] == nullptr && !hasJoined_[at]) stalled.missing.push_back(rank);
    }
  }
  std::sort(found.begin(), found.end(), [](const Stalled& left, const Stalled& right) {
    return left.since < right.since || (left.since == right.since && left.name < right.name);
  });
  return found;
}

}  // namespace agspeed::comm
