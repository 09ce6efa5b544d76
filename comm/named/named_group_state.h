// SPDX-License-Identifier: Apache-2.0
// Describes the unfinished operations of a named group, to find the cause of a hang. Functions without side effects.
#pragma once

#include <span>
#include <string>

#include "comm/engine/group_state.h"
#include "comm/named/coordinator/coordinator.h"
#include "comm/named/named_operation.h"

namespace agspeed::comm::named {

/// One rank's view of a named group. All referenced objects outlive the call of stateOf().
struct NamedProgress {
  std::string name;
  std::span<const int> members;          ///< the ranks of the group, as world ranks; the first is the coordinator
  std::string failure;                   ///< why the group has ended; empty: it has not
  std::span<const NamedHandle> unready;  ///< operations whose inputs are not ready
  std::span<const NamedHandle> pending;  ///< operations that wait for their response
  io::Clock::time_point waitingSince;    ///< start of the first pending operation, or the last response
  const coordinator::Coordinator* coordinator =
      nullptr;  ///< null at the other ranks, which do not know which ranks are missing
};

engine::GroupState stateOf(const NamedProgress& progress);

}  // namespace agspeed::comm::named
