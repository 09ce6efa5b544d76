// SPDX-License-Identifier: Apache-2.0
// The job key: a secret that the launcher gives to all ranks of a job. With it, connections are authenticated. Without
// it they are opportunistic: ranks agree on keys through the store, which an attacker may be able to change.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "runtime/base/status.h"

namespace agspeed::comm::security {

/// The bytes of the job key; empty if there is none.
using JobKey = std::vector<std::byte>;

/// Returns the job key: `text`, or the content of `file` if `text` is empty, without white space at its ends. Returns
/// no key if both are empty. Invalid argument: the key has fewer than 16 or more than 4096 bytes, other users may read
/// the file, or the file belongs neither to the caller nor to root. A file /proc/self/fd/N must be the memory in which
/// `agspeed run` passes the key on. N may be any other file, because a parent process may have closed that memory.
/// Messages never show the key.
StatusOr<JobKey> loadJobKey(const std::string& text, const std::string& file);

}  // namespace agspeed::comm::security
