// SPDX-License-Identifier: Apache-2.0
#include "runtime/memory/mapped_pages.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdint>
#include <cstring>

namespace agspeed::runtime {
namespace {

TEST(MappedPages, MemoryIsZeroAlignedAndWritable) {
  for (const size_t bytes : {size_t{4096}, size_t{1} << 20, kHugePageBytes, 3 * kHugePageBytes + 4096}) {
    auto* data = static_cast<unsigned char*>(mapPages(bytes));
    ASSERT_NE(data, nullptr) << bytes;
    const size_t alignment = bytes < kHugePageBytes ? 4096 : kHugePageBytes;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % alignment, 0u) << bytes;
    EXPECT_EQ(data[0] | data[bytes - 1], 0) << bytes;
    std::memset(data, 1, bytes);
    unmapPages(data, bytes);
  }
}

TEST(MappedPages, AReturnedBlockIsUnmapped) {
  rusage before{};
  rusage after{};
  void* data = mapPages(kHugePageBytes);
  std::memset(data, 1, kHugePageBytes);
  unmapPages(data, kHugePageBytes);
  getrusage(RUSAGE_SELF, &before);
  data = mapPages(kHugePageBytes);
  std::memset(data, 1, kHugePageBytes);
  getrusage(RUSAGE_SELF, &after);
  EXPECT_GT(after.ru_minflt, before.ru_minflt) << "its pages must be mapped anew";
  unmapPages(data, kHugePageBytes);
}

TEST(MappedPages, TooMuchMemoryIsRefused) { EXPECT_EQ(mapPages(size_t{1} << 60), nullptr); }

}  // namespace
}  // namespace agspeed::runtime
