// SPDX-License-Identifier: Apache-2.0
// GroupState: the operations that a group has in flight, as plain values for the diagnosis of a hang
// (comm/world/inspection.h). Groups make these values only on request, from the state that they keep for their work.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/io/clock.h"

namespace agspeed::comm::engine {

/// An operation that is not done.
struct OperationState {
  std::string call;                  ///< such as "all_reduce(1024 x f32, sum)"
  std::string name;                  ///< the name by which ranks match it; empty: they match it by its sequence or tag
  std::optional<uint64_t> sequence;  ///< its number among the collectives of its group
  std::string blockedBy;             ///< why it moves no data yet: "its input is not ready"; empty: it moves data
  io::Clock::time_point since;       ///< when it started, or the first time at which it was known to wait
  uint64_t numBytes = 0;             ///< bytes that this rank sends and receives for it; 0: not known yet
  uint64_t numBytesMoved = 0;
  std::vector<int> awaited;  ///< the ranks that it waits for, as world ranks
};

struct GroupState {
  /// The largest number of operations in a state, because a group may have thousands.
  static constexpr size_t kMaxOperations = 32;

  std::string name;
  bool isNamed = false;                    ///< ranks match its operations by name
  std::vector<int> members;                ///< the group's ranks, as world ranks
  uint64_t numCalls = 0;                   ///< the sequence of the last collective that this rank has started
  std::string lastCall;                    ///< the text of the collective with the sequence numCalls
  std::string failure;                     ///< why the group has ended; empty: it has not
  size_t numOperations = 0;                ///< operations that are not done
  std::vector<OperationState> operations;  ///< the oldest operations that are not done
  /// Operations that other ranks wait for and this rank has not started. The list contains only operations that this
  /// rank knows of.
  std::vector<OperationState> notStarted;
};

}  // namespace agspeed::comm::engine
