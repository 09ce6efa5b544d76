// SPDX-License-Identifier: Apache-2.0
// The allocator that agspeed puts before torch's CPU allocator: it keeps freed blocks (runtime/memory/block_cache.h),
// and counts bytes for the MemoryMeter.
//
// It is installed only while it does one of the two. Storage that was allocated meanwhile has our deleter and stays
// valid afterwards; the deleter returns it to its origin, at any time and on any thread. All other storage comes from
// torch's allocator, also blocks below BlockCache::kSmallest. torch.profiler sees all blocks.
//
// Blocks are kept only if the process uses torch's own allocator on the C library's malloc: see whyNotRetained().
// c10::SetCPUAllocator is called with the lowest priority, so an allocator with a higher one is never replaced. If
// other code replaces ours later, ours keeps what it is asked for by the replacement only.
//
// All functions may be called from any thread, except that none may run while another thread calls
// c10::SetCPUAllocator: c10 has no lock for it. A forked child keeps no blocks.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "runtime/base/status.h"
#include "runtime/memory/block_cache.h"

namespace agspeed::runtime::aten {

/// Why this process must not keep blocks, as a sentence without its full stop; empty if it may. Reasons: a build with
/// AddressSanitizer; another malloc; another CPU allocator in torch; torch fills new memory for debugging.
std::string whyNotRetained();

/// Keeps freed blocks from now on, within `limits`. Errors: kUnsupported with the sentence of whyNotRetained().
Status startRetaining(const BlockCache::Limits& limits);
/// Releases the idle blocks, and keeps none from now on. Blocks in use are released when they are freed.
void stopRetaining();

struct RetainedMemory {
  BlockCache::Counts counts;
  bool isOn = false;
  bool isReplaced = false;  ///< other code has installed another CPU allocator since
};
RetainedMemory retainedMemory();

/// Bytes of the storage that was allocated while counting ran, until it is freed.
struct ByteCounter {
  std::atomic<int64_t> live{0};
  std::atomic<int64_t> peak{0};

  void add(int64_t bytes);
  void raisePeakTo(int64_t bytes);
};
ByteCounter& cpuByteCounter();

/// Counts the storage that is allocated from now on. Errors: kUnsupported if torch's CPU allocator was replaced by one
/// that cannot be wrapped.
Status startCounting();
void stopCounting();

}  // namespace agspeed::runtime::aten
