// SPDX-License-Identifier: Apache-2.0
// What the system says of a call that failed, in words for people. Thread-safe.
#pragma once

#include <string>

namespace agspeed {

/// "Permission denied" for EACCES. Where the process or the system has no descriptor left, what to do about it follows.
std::string describeError(int error);

}  // namespace agspeed
