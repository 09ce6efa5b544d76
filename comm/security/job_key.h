// SPDX-License-Identifier: Apache-2.0
// The job key: a secret that all ranks of a job were given by whoever started them. With it, connections are
// authenticated; without it they are opportunistic: keys are agreed through the store, which anybody may have changed.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "runtime/base/status.h"

namespace agspeed::comm {

/// Empty when there is none.
using JobKey = std::vector<std::byte>;

/// The key given as text, or else the content of the file, without white space at its ends; no key when both are empty.
/// Invalid arguments are a key of fewer than 16 or more than 4096 bytes and a file that others may read or that belongs
/// to another user than the caller and root. The file /proc/self/fd/N has to be the memory in which `agspeed run` hands
/// its key on: a process whose parent has closed it may have any other file there. Messages never show the key.
StatusOr<JobKey> loadJobKey(const std::string& text, const std::string& file);

}  // namespace agspeed::comm
