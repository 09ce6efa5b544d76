// SPDX-License-Identifier: Apache-2.0
// Describes the operations of a named group that are not done, for people who look into a hang. Pure.
#pragma once

#include <span>
#include <string>

#include "comm/engine/group_state.h"
#include "comm/named/coordinator/coordinator.h"
#include "comm/named/named_operation.h"

namespace agspeed::comm {

/// One rank's view of a named group. Everything outlives the call of stateOf().
struct NamedProgress {
  std::string name;
  std::span<const int> members;              ///< the world's numbers of its ranks; the first one is the coordinator's
  std::string failure;                       ///< why the group has ended; empty: it has not
  std::span<const NamedHandle> unready;      ///< operations whose inputs are not ready
  std::span<const NamedHandle> pending;      ///< operations without a response
  Clock::time_point waitingSince;            ///< when the first operation became pending, or a response came last
  const Coordinator* coordinator = nullptr;  ///< null at other ranks; only it knows which ranks are missing
};

GroupState stateOf(const NamedProgress& progress);

}  // namespace agspeed::comm
