// SPDX-License-Identifier: Apache-2.0
// Writes a file under a temporary name beside its destination, and then moves it there as a whole.
//
// In a folder that others may write to, a predictable name may already exist, for example as a link to another user's
// file. So a file is created under a random new name with mode 0600. A rename, which follows no link, moves it to its
// place. POSIX calls only; no state, safe from any thread.
#pragma once

#include <string>
#include <string_view>

#include "runtime/base/status.h"

namespace agspeed {

/// Writes a file with this content, and replaces an existing one of that name. Returns: unavailable with the reason,
/// also if the name is taken by something that is not a regular file. A failed call leaves nothing behind.
Status writeFile(const std::string& path, std::string_view content);

/// Makes an empty file and replaces an existing one of that name. Others may read the content while it is written.
/// Returns: its descriptor, which the caller closes; unavailable as above.
StatusOr<int> createFile(const std::string& path);

}  // namespace agspeed
