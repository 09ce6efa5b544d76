// SPDX-License-Identifier: Apache-2.0
// The catalog: a table of all algorithms, made from catalog.def.
#pragma once

#include <span>
#include <string_view>

#include "comm/schedule/schedule_builder.h"

namespace agspeed::comm::schedule {

/// The order in which an algorithm reduces; see catalog.def.
enum class Order : uint8_t { kCanonical, kAnyOrder };
/// Where the chunks of an algorithm's buffers may be in memory; see catalog.def.
enum class Memory : uint8_t { kChunks, kContiguous };

struct Algorithm {
  Collective collective;
  std::string_view name;
  Schedule (*make)(const ScheduleRequest& request);  ///< makes the schedule of one rank
  Order order;
  Memory memory;
};

/// Returns whether the algorithm uses ScheduleRequest::localGroups.
bool usesLocalGroups(const Algorithm& algorithm);

/// Returns all algorithms; the algorithms of one collective are adjacent.
std::span<const Algorithm> algorithms();
/// Returns the algorithm with this name, or nullptr if there is none.
const Algorithm* findAlgorithm(Collective collective, std::string_view name);

}  // namespace agspeed::comm::schedule
