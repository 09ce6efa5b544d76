// SPDX-License-Identifier: Apache-2.0
#include "runtime/memory/mapped_pages.h"

#include <sys/mman.h>

#include <cstdint>

namespace agspeed::runtime {
namespace {

void* mapAnywhere(size_t bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return data == MAP_FAILED ? nullptr : data;
}

bool isHugeAligned(const void* data) { return reinterpret_cast<uintptr_t>(data) % kHugePageBytes == 0; }

/// Maps one huge page more than needed, and unmaps what lies outside of the aligned part.
void* mapAligned(size_t bytes) {
  auto* data = static_cast<std::byte*>(mapAnywhere(bytes + kHugePageBytes));
  if (data == nullptr) return nullptr;
  const size_t before = (kHugePageBytes - reinterpret_cast<uintptr_t>(data) % kHugePageBytes) % kHugePageBytes;
  if (before > 0) munmap(data, before);
  munmap(data + before + bytes, kHugePageBytes - before);
  return data + before;
}

}  // namespace

void* mapPages(size_t bytes) {
  void* data = mapAnywhere(bytes);
  if (data == nullptr || bytes < kHugePageBytes) return data;
  if (!isHugeAligned(data)) {  // recent kernels align large memory by themselves
    munmap(data, bytes);
    data = mapAligned(bytes);
  }
  if (data != nullptr) madvise(data, bytes, MADV_HUGEPAGE);  // a kernel without huge pages refuses: small ones do
  return data;
}

void unmapPages(void* data, size_t bytes) { munmap(data, bytes); }

}  // namespace agspeed::runtime
