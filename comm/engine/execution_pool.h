// SPDX-License-Identifier: Apache-2.0
// ExecutionPool: the executions of one rank of a group, by schedule. A schedule is made once. Executions that have
// ended are reused together with their memory.
//
// Threading: on the engine's driver. Ownership: owns the executions; none may be running when it is destroyed.
#pragma once

#include <compare>
#include <map>
#include <memory>
#include <vector>

#include "comm/engine/execution.h"
#include "comm/schedule/catalog.h"

namespace agspeed::comm {

/// Identifies a schedule among the schedules of one rank of a group.
struct ScheduleKey {
  const Algorithm* algorithm = nullptr;
  int root = 0;            ///< 0 if the collective has no root
  int localGroupSize = 1;  ///< see ScheduleRequest
  auto operator<=>(const ScheduleKey&) const = default;
};

class ExecutionPool {
 public:
  /// Executions report to `listener`.
  ExecutionPool(Engine& engine, ExecutionListener& listener, int rank, int numRanks)
      : engine_(engine), listener_(listener), rank_(rank), numRanks_(numRanks) {}

  /// An execution that is not running.
  Execution& acquire(const ScheduleKey& key);
  /// Returns an execution to the pool. Requires: acquire() returned it for this key, and it has ended or was cancelled.
  void release(const ScheduleKey& key, Execution& execution);

 private:
  /// One schedule and its executions.
  struct Entry {
    explicit Entry(Schedule schedule) : prepared(std::move(schedule)) {}

    PreparedSchedule prepared;
    std::vector<std::unique_ptr<Execution>> all;
    std::vector<Execution*> idle;
  };

  Engine& engine_;
  ExecutionListener& listener_;
  const int rank_, numRanks_;
  std::map<ScheduleKey, Entry> entries_;
};

}  // namespace agspeed::comm
