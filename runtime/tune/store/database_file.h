// SPDX-License-Identifier: Apache-2.0
// Checks whether a cache file may be trusted. POSIX calls only; no state, safe from any thread.
#pragma once

#include <string>

#include "runtime/base/status.h"

namespace agspeed::runtime::tune {

/// Creates missing folders (mode 0700) and the file (mode 0600, empty). Returns: ok if the file is the user's own,
/// private and writable; else an error that says why it must be ignored.
Status prepareTrustedFile(const std::string& path);

}  // namespace agspeed::runtime::tune
