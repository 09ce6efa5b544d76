// SPDX-License-Identifier: Apache-2.0
// Declares the functions named in catalog.def. Each function makes one rank's schedule of its algorithm, for any number
// of ranks. The file of an algorithm describes it. All functions are pure and thread-safe.
#pragma once

#include "comm/schedule/schedule_builder.h"

namespace agspeed::comm::schedule {

#define AG_ALGORITHM(collective, name, function, order, memory) Schedule function(const ScheduleRequest& request);
#include "comm/schedule/catalog.def"
#undef AG_ALGORITHM

}  // namespace agspeed::comm::schedule
