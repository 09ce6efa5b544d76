// SPDX-License-Identifier: Apache-2.0
#include "tests/comm/network/counted_allocations.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {
std::atomic<size_t> numMade = 0;
}  // namespace

namespace agspeed::comm::network {
size_t numAllocations() { return numMade; }
}  // namespace agspeed::comm::network

void* operator new(size_t size) {
  ++numMade;
  if (void* memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
