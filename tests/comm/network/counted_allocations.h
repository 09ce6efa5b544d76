// SPDX-License-Identifier: Apache-2.0
// Replaces the process's operator new by one that counts. Thread-safe.
#pragma once

#include <cstddef>

namespace agspeed::comm::network {

/// The number of allocations since the process began.
size_t numAllocations();

}  // namespace agspeed::comm::network
