// SPDX-License-Identifier: Apache-2.0
#include "comm/named/coordinator/batches.h"

#include <algorithm>
#include <utility>

namespace agspeed::comm::coordinator {

Batch* Batches::add(const std::vector<uint32_t>& ids, size_t numBytes, io::Clock::time_point now) {
  auto batch = std::make_unique<Batch>();
  batchOf_.resize(std::max<size_t>(batchOf_.size(), *std::max_element(ids.begin(), ids.end())));
  for (size_t i = 0; i < ids.size(); ++i) {
    Batch*& batchOfId = batchOf_[ids[i] - 1];
    if (batchOfId == nullptr) {
      batchOfId = batch.get();
      continue;
    }
    for (size_t earlier = 0; earlier < i; ++earlier) release(ids[earlier]);
    return nullptr;
  }
  batch->ids = ids;
  batch->hasSubmitted.assign(static_cast<size_t>(numRanks_), false);
  batch->numBytes = numBytes;
  batch->since = now;
  numWaitingIds_ += ids.size();
  return waiting_.emplace_back(std::move(batch)).get();
}

Batch* Batches::find(const std::vector<uint32_t>& ids, int rank) const {
  const auto same = std::find_if(waiting_.begin(), waiting_.end(), [&](const BatchHandle& each) {
    return each->ids == ids && !each->hasSubmitted[static_cast<size_t>(rank)];
  });
  return same == waiting_.end() ? nullptr : same->get();
}

Batch* Batches::findWaiting(uint32_t id) const {
  if (!contains(id)) return nullptr;
  Batch* batch = batchOf_[id - 1];
  return batch->numSubmitted < numRanks_ ? batch : nullptr;
}

BatchHandle Batches::take(const Batch& batch) {
  const auto at =
      std::find_if(waiting_.begin(), waiting_.end(), [&](const BatchHandle& each) { return each.get() == &batch; });
  BatchHandle taken = std::move(*at);
  waiting_.erase(at);
  numWaitingIds_ -= taken->ids.size();
  return taken;
}

}  // namespace agspeed::comm::coordinator
