// SPDX-License-Identifier: Apache-2.0
// How a file is written: under a name of its own beside its place, and put there whole.
//
// In a folder where others may write, a name that can be foreseen may be taken already, by a link to somebody's file
// say. So a file is made under a random name that did not exist, with mode 0600, and takes its place by a rename, which
// follows no link. POSIX calls only; no state, safe from any thread.
#pragma once

#include <string>
#include <string_view>

#include "runtime/base/status.h"

namespace agspeed {

/// Puts a file of this content in place of what has that name.
/// Returns: unavailable with the reason, also where something is there that is no regular file; nothing is left behind.
Status writeFile(const std::string& path, std::string_view content);

/// An empty file in place of what has that name, for content that others may read while it is written.
/// Returns: its descriptor, which the caller closes; unavailable as above.
StatusOr<int> createFile(const std::string& path);

}  // namespace agspeed
