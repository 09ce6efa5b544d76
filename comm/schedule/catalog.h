// SPDX-License-Identifier: Apache-2.0
// All algorithms, as a table made from catalog.def.
#pragma once

#include <span>
#include <string_view>

#include "comm/schedule/schedule_builder.h"

namespace agspeed::comm {

/// The order in which an algorithm reduces; see catalog.def.
enum class Order : uint8_t { kCanonical, kAnyOrder };
/// Where the chunks of its buffers may lie.
enum class Memory : uint8_t { kChunks, kContiguous };

struct Algorithm {
  Collective collective;
  std::string_view name;
  Schedule (*make)(const ScheduleRequest& request);  ///< makes the schedule of any rank of any number of ranks
  Order order;
  Memory memory;
};

/// All algorithms; the algorithms of one collective are adjacent.
std::span<const Algorithm> algorithms();
/// The algorithm with this name, or nullptr.
const Algorithm* findAlgorithm(Collective collective, std::string_view name);

}  // namespace agspeed::comm
