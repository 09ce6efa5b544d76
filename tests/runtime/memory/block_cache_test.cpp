// SPDX-License-Identifier: Apache-2.0
#include "runtime/memory/block_cache.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <random>
#include <set>
#include <thread>
#include <utility>
#include <vector>

namespace agspeed::runtime {
namespace {

constexpr size_t kMib = size_t{1} << 20;
constexpr BlockCache::Limits kPlenty = {.idleBytes = 1024 * kMib, .slackBytes = 1024 * kMib};

// A system with a fixed number of bytes. Blocks are small pieces of the heap, whatever their size.
std::atomic<size_t> bytesLeft{0};
std::atomic<int> numAllocated{0};

void* allocate(size_t bytes) {
  size_t left = bytesLeft.load();
  do {
    if (bytes > left) return nullptr;
  } while (!bytesLeft.compare_exchange_weak(left, left - bytes));
  ++numAllocated;
  return std::malloc(64);
}

void release(void* block, size_t bytes) {
  bytesLeft += bytes;
  std::free(block);
}

class BlockCacheTest : public testing::Test {
 protected:
  BlockCacheTest() {
    bytesLeft = kTotal;
    numAllocated = 0;
  }

  static constexpr size_t kTotal = 4096 * kMib;
  BlockCache cache_{{&allocate, &release}};
};

TEST_F(BlockCacheTest, ABlockExceedsItsRequestByASixteenthAtMost) {
  for (size_t bytes = kMib; bytes < 64 * kMib; bytes += 12345) {
    const size_t size = BlockCache::classBytes(bytes);
    ASSERT_GE(size, bytes);
    ASSERT_LE(size - bytes, bytes / 16) << bytes;
    ASSERT_EQ(size % 4096, 0u) << bytes;
    ASSERT_EQ(BlockCache::classBytes(size), size) << bytes;
  }
}

TEST_F(BlockCacheTest, ABlockThatWasGivenBackServesTheNextRequestOfItsClass) {
  cache_.limit(kPlenty);
  void* block = cache_.take(5 * kMib);
  EXPECT_EQ(cache_.give(block).bytes, 5 * kMib);
  EXPECT_EQ(cache_.take(5 * kMib - 1000), block);
  EXPECT_EQ(numAllocated, 1);
  EXPECT_EQ(cache_.counts().numReused, 1u);
  EXPECT_EQ(cache_.counts().numNew, 1u);
  cache_.give(block);
}

TEST_F(BlockCacheTest, ARequestOfAnotherClassGetsNewMemory) {
  cache_.limit(kPlenty);
  void* block = cache_.take(5 * kMib);
  cache_.give(block);
  void* other = cache_.take(6 * kMib);
  EXPECT_EQ(numAllocated, 2);
  cache_.give(other);
}

TEST_F(BlockCacheTest, TheLatestBlockIsTakenFirst) {
  cache_.limit(kPlenty);
  void* first = cache_.take(kMib);
  void* second = cache_.take(kMib);
  cache_.give(first);
  cache_.give(second);
  EXPECT_EQ(cache_.take(kMib), second);
  EXPECT_EQ(cache_.take(kMib), first);
  cache_.give(first);
  cache_.give(second);
}

TEST_F(BlockCacheTest, NothingIsKeptWithoutLimits) {
  cache_.give(cache_.take(kMib));
  EXPECT_EQ(cache_.counts().idleBytes, 0u);
  EXPECT_EQ(bytesLeft, kTotal);
}

TEST_F(BlockCacheTest, NewLimitsReleaseBlocksAtOnce) {
  cache_.limit(kPlenty);
  cache_.give(cache_.take(8 * kMib));
  EXPECT_EQ(cache_.counts().idleBytes, 8 * kMib);
  cache_.limit({});
  EXPECT_EQ(cache_.counts().idleBytes, 0u);
  EXPECT_EQ(bytesLeft, kTotal);
}

TEST_F(BlockCacheTest, AboveTheLimitTheLongestIdleBlockIsReleased) {
  cache_.limit({.idleBytes = 5 * kMib, .slackBytes = kTotal});
  void* first = cache_.take(2 * kMib);
  void* second = cache_.take(3 * kMib);
  void* third = cache_.take(kMib);
  for (void* block : {first, second, third}) cache_.give(block);
  EXPECT_EQ(cache_.counts().idleBytes, 4 * kMib);
  EXPECT_EQ(cache_.take(3 * kMib), second);
  EXPECT_EQ(cache_.take(kMib), third);
  EXPECT_EQ(numAllocated, 3);
  cache_.give(second);
  cache_.give(third);
}

TEST_F(BlockCacheTest, ABlockAboveTheLimitIsNotKept) {
  cache_.limit({.idleBytes = 5 * kMib, .slackBytes = kTotal});
  cache_.give(cache_.take(6 * kMib));
  EXPECT_EQ(cache_.counts().idleBytes, 0u);
}

TEST_F(BlockCacheTest, IdleBlocksRaiseThePeakByAQuarterAtMost) {
  cache_.limit(kPlenty);
  std::vector<void*> blocks;
  for (int i = 0; i < 16; ++i) blocks.push_back(cache_.take(kMib));
  for (void* block : blocks) cache_.give(block);
  void* large = cache_.take(16 * kMib);
  EXPECT_EQ(cache_.counts().usedBytes, 16 * kMib);
  EXPECT_EQ(cache_.counts().idleBytes, 4 * kMib);
  EXPECT_EQ(kTotal - bytesLeft, 20 * kMib);
  cache_.give(large);
}

TEST_F(BlockCacheTest, TheSlackBoundsTheQuarter) {
  cache_.limit({.idleBytes = kTotal, .slackBytes = 2 * kMib});
  std::vector<void*> blocks;
  for (int i = 0; i < 16; ++i) blocks.push_back(cache_.take(kMib));
  for (void* block : blocks) cache_.give(block);
  void* large = cache_.take(16 * kMib);
  EXPECT_EQ(cache_.counts().idleBytes, 2 * kMib);
  cache_.give(large);
}

TEST_F(BlockCacheTest, BlocksThatNoRequestTakesAreReleased) {
  cache_.limit(kPlenty);
  void* rare = cache_.take(2 * kMib);
  void* often = cache_.take(3 * kMib);
  cache_.give(rare);
  for (int i = 0; i < 1000; ++i) {
    cache_.give(often);
    ASSERT_EQ(cache_.take(3 * kMib), often);
  }
  EXPECT_EQ(cache_.counts().idleBytes, 0u);
  EXPECT_EQ(cache_.counts().peakUsedBytes, 3 * kMib) << "the peak is that of recent requests";
  cache_.give(often);
}

TEST_F(BlockCacheTest, IdleBlocksAreReleasedIfTheSystemHasNoMemoryLeft) {
  cache_.limit(kPlenty);
  bytesLeft = 9 * kMib;
  std::vector<void*> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(cache_.take(kMib));
  for (void* block : blocks) cache_.give(block);
  void* large = cache_.take(6 * kMib);  // a quarter of the peak beside it would leave 5 MiB
  EXPECT_NE(large, nullptr);
  EXPECT_EQ(cache_.counts().idleBytes, 0u);
  EXPECT_EQ(cache_.take(4 * kMib), nullptr);
  cache_.give(large);
}

TEST_F(BlockCacheTest, ForeignAddressesAreNotAccepted) {
  int value = 0;
  EXPECT_EQ(cache_.give(&value).bytes, 0u);
  EXPECT_EQ(cache_.give(nullptr).bytes, 0u);
}

TEST_F(BlockCacheTest, MarksComeBackWithTheirBlocks) {
  cache_.limit(kPlenty);
  void* marked = cache_.take(kMib, /*isMarked=*/true);
  EXPECT_TRUE(cache_.give(marked).isMarked);
  void* plain = cache_.take(kMib);
  EXPECT_FALSE(cache_.give(plain).isMarked);
}

TEST_F(BlockCacheTest, RandomRequestsStayWithinTheLimits) {
  const char* text = std::getenv("AG_TEST_SEED");
  const unsigned seed = text != nullptr ? static_cast<unsigned>(std::atoi(text)) : std::random_device{}();
  std::mt19937 random(seed);
  const BlockCache::Limits limits = {.idleBytes = 40 * kMib, .slackBytes = 10 * kMib};
  cache_.limit(limits);
  std::vector<void*> used;
  size_t peak = 0;
  for (int i = 0; i < 5000; ++i) {
    if (used.size() < 20 && random() % 2 == 0) {
      used.push_back(cache_.take(kMib + random() % (8 * kMib)));
      ASSERT_EQ(std::set(used.begin(), used.end()).size(), used.size()) << "seed " << seed;
    } else if (!used.empty()) {
      std::swap(used[random() % used.size()], used.back());
      ASSERT_GT(cache_.give(used.back()).bytes, 0u) << "seed " << seed;
      used.pop_back();
    }
    const BlockCache::Counts counts = cache_.counts();
    peak = std::max(peak, counts.usedBytes);
    ASSERT_EQ(counts.usedBytes + counts.idleBytes, kTotal - bytesLeft) << "seed " << seed << ", request " << i;
    ASSERT_LE(counts.idleBytes, limits.idleBytes) << "seed " << seed << ", request " << i;
    ASSERT_LE(counts.usedBytes + counts.idleBytes, peak + limits.slackBytes) << "seed " << seed << ", request " << i;
  }
  for (void* block : used) cache_.give(block);
  cache_.clear();
  EXPECT_EQ(bytesLeft, kTotal) << "seed " << seed;
}

TEST_F(BlockCacheTest, ThreadsNeverShareABlock) {
  cache_.limit(kPlenty);
  std::mutex mutex;
  std::vector<void*> handed;  // blocks that another thread gives back
  const auto work = [&](int thread) {
    for (int i = 0; i < 2000; ++i) {
      void* block = cache_.take(kMib * (1 + static_cast<size_t>(i % 3)));
      std::memset(block, thread, 64);
      for (int k = 0; k < 64; ++k) ASSERT_EQ(static_cast<char*>(block)[k], thread);
      const std::lock_guard lock(mutex);
      handed.push_back(block);
      if (handed.size() < 8) continue;
      cache_.give(handed.front());
      handed.erase(handed.begin());
    }
  };
  std::vector<std::thread> threads;
  for (int thread = 1; thread <= 6; ++thread) threads.emplace_back(work, thread);
  for (std::thread& thread : threads) thread.join();
  for (void* block : handed) cache_.give(block);
  EXPECT_EQ(cache_.counts().usedBytes, 0u);
}

TEST_F(BlockCacheTest, AForkedChildKeepsNothing) {
  cache_.limit(kPlenty);
  void* idle = cache_.take(kMib);
  void* used = cache_.take(2 * kMib);
  cache_.give(idle);
  cache_.prepareFork();
  const pid_t child = fork();
  if (child == 0) {
    cache_.childForked();
    const bool isGiven = cache_.give(used).bytes == 2 * kMib;
    _exit(isGiven && cache_.counts().idleBytes == 0 ? 0 : 1);
  }
  cache_.parentForked();
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(cache_.take(kMib), idle) << "the parent keeps its blocks";
  cache_.give(idle);
  cache_.give(used);
}

}  // namespace
}  // namespace agspeed::runtime
