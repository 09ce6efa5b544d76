// SPDX-License-Identifier: Apache-2.0
// Describes the error of a failed system call for users. Thread-safe.
#pragma once

#include <string>

namespace agspeed {

/// "Permission denied" for EACCES. If the process or the system has run out of descriptors, it adds what to do about
/// it.
std::string describeError(int error);

}  // namespace agspeed
