// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/counted_memory.h"

#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<int64_t> liveBytes = 0;
std::atomic<int64_t> peakBytes = 0;

void* counted(void* block) {
  if (block == nullptr) throw std::bad_alloc();
  const int64_t live = liveBytes += static_cast<int64_t>(malloc_usable_size(block));
  int64_t peak = peakBytes;
  while (live > peak && !peakBytes.compare_exchange_weak(peak, live)) {
  }
  return block;
}

}  // namespace

void* operator new(size_t size) { return counted(std::malloc(std::max<size_t>(size, 1))); }
void operator delete(void* block) noexcept {
  if (block != nullptr) liveBytes -= static_cast<int64_t>(malloc_usable_size(block));
  std::free(block);
}
void operator delete(void* block, size_t) noexcept { operator delete(block); }

namespace agspeed {

CountedMemory::CountedMemory() : before_(liveBytes) { ::peakBytes = before_; }

int64_t CountedMemory::peakBytes() const { return ::peakBytes - before_; }

}  // namespace agspeed
