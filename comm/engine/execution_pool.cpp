// SPDX-License-Identifier: Apache-2.0
#include "comm/engine/execution_pool.h"

namespace agspeed::comm::engine {

Execution& ExecutionPool::acquire(const ScheduleKey& key) {
  auto at = entries_.find(key);
  if (at == entries_.end()) {
    schedule::ScheduleRequest request{key.algorithm->collective, rank_, numRanks_, key.root, {}};
    if (key.localGroups != nullptr) request.localGroups = *key.localGroups;
    at = entries_.try_emplace(key, key.algorithm->make(request)).first;
  }
  Entry& entry = at->second;
  if (entry.idle.empty()) {
    entry.all.push_back(std::make_unique<Execution>(entry.prepared, engine_, listener_));
    entry.idle.push_back(entry.all.back().get());
  }
  Execution& execution = *entry.idle.back();
  entry.idle.pop_back();
  return execution;
}

void ExecutionPool::release(const ScheduleKey& key, Execution& execution) {
  entries_.at(key).idle.push_back(&execution);
}

}  // namespace agspeed::comm::engine
