// SPDX-License-Identifier: Apache-2.0
// What programs share that run on hosts of their own: sockets in the file system that they meet at, and processor time.
#pragma once

#include <string>
#include <vector>

namespace agspeed::comm::nccl {

/// A socket to each other process, by rank; -1 at the own place. Each waits at `path` with its rank behind it for those
/// of higher ranks. Throws where a process does not come within 20 s.
std::vector<int> meetAt(const std::string& path, size_t rank, size_t size);

/// Of this process until now.
double processorSeconds();

}  // namespace agspeed::comm::nccl
