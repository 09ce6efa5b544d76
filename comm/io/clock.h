// SPDX-License-Identifier: Apache-2.0
// Clock: the clock of all deadlines, timers and rates.
#pragma once

#include <chrono>

namespace agspeed::comm::io {

using Clock = std::chrono::steady_clock;

}  // namespace agspeed::comm::io
