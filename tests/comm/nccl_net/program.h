// SPDX-License-Identifier: Apache-2.0
// Common parts of programs that run on hosts of their own: connections through sockets in the file system, and
// processor time.
#pragma once

#include <string>
#include <vector>

namespace agspeed::comm::nccl {

/// Returns a socket to each other process, by rank, and -1 for this one. Each process listens at `path` followed by its
/// rank for processes of higher ranks. Throws if a process does not come within 20 s.
std::vector<int> connectAll(const std::string& path, size_t rank, size_t size);

/// Returns the processor time of this process until now.
double processorSeconds();

}  // namespace agspeed::comm::nccl
