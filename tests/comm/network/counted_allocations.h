// SPDX-License-Identifier: Apache-2.0
// Replaces the process's operator new by one that counts. From any thread.
#pragma once

#include <cstddef>

namespace agspeed::comm {

/// Since the process began.
size_t numAllocations();

}  // namespace agspeed::comm
