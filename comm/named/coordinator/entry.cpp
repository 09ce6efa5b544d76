// SPDX-License-Identifier: Apache-2.0
#include "comm/named/coordinator/entry.h"

#include <utility>

#include "comm/named/coordinator/fusion.h"

namespace agspeed::comm::coordinator {

bool Entry::isLargeTensor() const { return batch == nullptr && runsAlone(firstOf(requests), numBytes); }

EntryHandle EntryPool::make(uint32_t id, io::Clock::time_point now) {
  EntryHandle entry;
  if (spare_.empty()) {
    entry = std::make_unique<Entry>();
  } else {
    entry = std::move(spare_.back());
    spare_.pop_back();
  }
  entry->requests.resize(static_cast<size_t>(numRanks_));
  entry->id = id;
  entry->order = ++numMade_;
  entry->since = now;
  return entry;
}

void EntryPool::recycle(EntryHandle entry) {
  entry->requests.clear();
  entry->numSubmitted = 0;
  entry->batch = nullptr;
  spare_.push_back(std::move(entry));
}

}  // namespace agspeed::comm::coordinator
