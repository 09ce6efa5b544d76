// SPDX-License-Identifier: Apache-2.0
// Memory that comes directly from the kernel, in whole pages, without the C library's heap.
//
// The functions hold no state and may be called from any thread.
#pragma once

#include <cstddef>

namespace agspeed::runtime {

/// The size of a huge page on x86-64, and on AArch64 with pages of 4 KiB.
inline constexpr size_t kHugePageBytes = size_t{2} << 20;

/// New memory that reads as zero, or nullptr if the system has none left. From kHugePageBytes on, it is aligned to
/// kHugePageBytes and the kernel is asked for huge pages; smaller memory is aligned to a page. Requires: `bytes` is a
/// positive multiple of the page size. Give it back with unmapPages().
void* mapPages(size_t bytes);

/// Returns memory of mapPages() to the kernel. `bytes`: as passed there.
void unmapPages(void* data, size_t bytes);

}  // namespace agspeed::runtime
