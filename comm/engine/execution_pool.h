// SPDX-License-Identifier: Apache-2.0
// ExecutionPool: makes and reuses the executions of one rank of a group. It makes each schedule once, and reuses idle
// executions together with their memory.
//
// Threading: all functions run on the engine's driver. Ownership: the pool owns the executions. None may be running
// when the pool is destroyed.
#pragma once

#include <compare>
#include <map>
#include <memory>
#include <vector>

#include "comm/engine/execution.h"
#include "comm/schedule/catalog.h"

namespace agspeed::comm::engine {

/// Identifies a schedule among the schedules of one rank of a group.
struct ScheduleKey {
  const schedule::Algorithm* algorithm = nullptr;
  int root = 0;  ///< 0 if the collective has no root
  /// The first rank of each local group, or null; see ScheduleRequest. The caller keeps the list as long as the pool
  /// exists. It uses one list object for equal groups, because keys compare the pointers.
  const std::vector<int>* localGroups = nullptr;
  auto operator<=>(const ScheduleKey&) const = default;
};

class ExecutionPool {
 public:
  /// Makes an empty pool. Its executions report to `listener`.
  ExecutionPool(Engine& engine, ExecutionListener& listener, int rank, int numRanks)
      : engine_(engine), listener_(listener), rank_(rank), numRanks_(numRanks) {}

  /// Returns an idle execution of the schedule that `key` identifies, and makes it if there is none.
  Execution& acquire(const ScheduleKey& key);
  /// Returns an execution to the pool. Requires: acquire() returned it for this key, and its run is complete or was
  /// cancelled.
  void release(const ScheduleKey& key, Execution& execution);

 private:
  /// One schedule and its executions.
  struct Entry {
    explicit Entry(schedule::Schedule schedule) : prepared(std::move(schedule)) {}

    PreparedSchedule prepared;
    std::vector<std::unique_ptr<Execution>> all;
    std::vector<Execution*> idle;
  };

  Engine& engine_;
  ExecutionListener& listener_;
  const int rank_, numRanks_;
  std::map<ScheduleKey, Entry> entries_;
};

}  // namespace agspeed::comm::engine
