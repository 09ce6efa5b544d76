// SPDX-License-Identifier: Apache-2.0
#include "runtime/memory/arena_pool.h"

#include <gtest/gtest.h>

#include <cstring>
#include <thread>
#include <vector>

namespace agspeed::runtime {
namespace {

TEST(ArenaPool, BuffersAreAlignedAndLargeEnough) {
  ArenaPool pool;
  for (int64_t bytes : {1, 63, 64, 65, 4096, 1000003}) {
    ArenaPool::Buffer buffer = pool.acquire(bytes);
    EXPECT_GE(buffer.bytes, bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data.get()) % ArenaPool::kAlignment, 0u);
    pool.release(std::move(buffer));
  }
}

TEST(ArenaPool, AReturnedBufferServesTheNextCall) {
  ArenaPool pool;
  ArenaPool::Buffer first = pool.acquire(1000);
  const std::byte* address = first.data.get();
  pool.release(std::move(first));
  ArenaPool::Buffer second = pool.acquire(500);
  EXPECT_EQ(second.data.get(), address);
  pool.release(std::move(second));
}

TEST(ArenaPool, AnEmptyArenaNeedsNoBuffer) {
  ArenaPool pool;
  EXPECT_EQ(pool.acquire(0).data, nullptr);
}

TEST(ArenaPool, CountsOnlyWhatIsInUse) {
  ArenaPool pool;
  const int64_t before = ArenaPool::bytesInUse();
  ArenaPool::Buffer buffer = pool.acquire(640);
  EXPECT_EQ(ArenaPool::bytesInUse() - before, 640);
  pool.release(std::move(buffer));
  EXPECT_EQ(ArenaPool::bytesInUse(), before);
}

TEST(ArenaPool, ConcurrentCallsNeverShareABuffer) {
  ArenaPool pool;
  const auto work = [&pool](int thread) {
    for (int i = 0; i < 2000; ++i) {
      ArenaPool::Buffer buffer = pool.acquire(256 + 64 * (i % 3));
      std::memset(buffer.data.get(), thread, 256);
      for (int k = 0; k < 256; ++k) ASSERT_EQ(static_cast<int>(buffer.data.get()[k]), thread);
      pool.release(std::move(buffer));
    }
  };
  std::vector<std::thread> threads;
  for (int thread = 1; thread <= 6; ++thread) threads.emplace_back(work, thread);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace agspeed::runtime
