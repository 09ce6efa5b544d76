// SPDX-License-Identifier: Apache-2.0
#include "runtime/memory/block_cache.h"

#include <algorithm>
#include <bit>

namespace agspeed::runtime {
namespace {

constexpr size_t kClassesPerDoubling = 16;
constexpr size_t kPeaksPerSweep = 32;
constexpr size_t kSlackShare = 4;  ///< idle blocks may exceed the peak of used bytes by one part in this number

}  // namespace

BlockCache::~BlockCache() { clear(); }

size_t BlockCache::classBytes(size_t bytes) {
  const size_t unit = std::bit_floor(bytes) / kClassesPerDoubling;
  return (bytes + unit - 1) / unit * unit;
}

void* BlockCache::take(size_t bytes, bool isMarked) {
  const size_t size = classBytes(bytes);
  ReleasedBlocks released;
  void* block = nullptr;
  {
    const std::lock_guard lock(mutex_);
    sweepIfDue(size, released);
    block = takeIdle(size);
    if (block != nullptr) {
      noteUse(block, size, isMarked);
    } else {
      keepWithinLimits(size, released);
    }
  }
  release(released);
  if (block != nullptr) return block;
  block = source_.allocate(size);
  if (block == nullptr && clear() > 0) block = source_.allocate(size);
  if (block == nullptr) return nullptr;
  const std::lock_guard lock(mutex_);
  ++counts_.numNew;
  noteUse(block, size, isMarked);
  return block;
}

BlockCache::Given BlockCache::give(void* block) {
  ReleasedBlocks released;
  Given given;
  {
    const std::lock_guard lock(mutex_);
    const auto found = used_.find(block);
    if (found == used_.end()) return given;
    given = {found->second.bytes, found->second.isMarked};
    used_.erase(found);
    counts_.usedBytes -= given.bytes;
    counts_.idleBytes += given.bytes;
    idle_[given.bytes].push_back({block, now_++});
    keepWithinLimits(0, released);
  }
  release(released);
  return given;
}

void BlockCache::limit(const Limits& limits) {
  ReleasedBlocks released;
  {
    const std::lock_guard lock(mutex_);
    limits_ = limits;
    keepWithinLimits(0, released);
  }
  release(released);
}

size_t BlockCache::clear() {
  ReleasedBlocks released;
  size_t bytes = 0;
  {
    const std::lock_guard lock(mutex_);
    bytes = counts_.idleBytes;
    dropAll(released);
  }
  release(released);
  return bytes;
}

BlockCache::Counts BlockCache::counts() const {
  const std::lock_guard lock(mutex_);
  Counts counts = counts_;
  counts.peakUsedBytes = recentPeak();
  return counts;
}

void BlockCache::prepareFork() { mutex_.lock(); }

void BlockCache::parentForked() { mutex_.unlock(); }

void BlockCache::childForked() {
  limits_ = {};
  mutex_.unlock();
}

void* BlockCache::takeIdle(size_t bytes) {
  const auto found = idle_.find(bytes);
  if (found == idle_.end() || found->second.empty()) return nullptr;
  void* block = found->second.back().block;
  found->second.pop_back();
  counts_.idleBytes -= bytes;
  ++counts_.numReused;
  return block;
}

void BlockCache::noteUse(void* block, size_t bytes, bool isMarked) {
  used_[block] = {bytes, isMarked};
  counts_.usedBytes += bytes;
  counts_.peakUsedBytes = std::max(counts_.peakUsedBytes, counts_.usedBytes);
}

void BlockCache::dropOldest(ReleasedBlocks& released) {
  auto oldest = idle_.end();
  for (auto list = idle_.begin(); list != idle_.end(); ++list) {
    if (list->second.empty()) continue;
    if (oldest == idle_.end() || list->second.front().since < oldest->second.front().since) oldest = list;
  }
  released.push_back({oldest->second.front().block, oldest->first});
  counts_.idleBytes -= oldest->first;
  oldest->second.erase(oldest->second.begin());
}

void BlockCache::dropAll(ReleasedBlocks& released) {
  for (const auto& [bytes, blocks] : idle_) {
    for (const Idle& idle : blocks) released.push_back({idle.block, bytes});
  }
  idle_.clear();
  counts_.idleBytes = 0;
}

/// `wanted`: bytes of a block that the caller is about to allocate.
void BlockCache::keepWithinLimits(size_t wanted, ReleasedBlocks& released) {
  const size_t used = counts_.usedBytes + wanted;
  const size_t peak = std::max(recentPeak(), used);
  const size_t held = peak + std::min(peak / kSlackShare, limits_.slackBytes);
  const size_t most = std::min(limits_.idleBytes, held - used);
  while (counts_.idleBytes > most) dropOldest(released);
}

void BlockCache::sweepIfDue(size_t taken, ReleasedBlocks& released) {
  takenBytes_ += taken;
  if (takenBytes_ < kPeaksPerSweep * std::max(recentPeak(), taken)) return;
  for (auto& [bytes, blocks] : idle_) {
    while (!blocks.empty() && blocks.front().since < latestSweep_) {
      released.push_back({blocks.front().block, bytes});
      counts_.idleBytes -= bytes;
      blocks.erase(blocks.begin());
    }
  }
  previousPeak_ = counts_.peakUsedBytes;
  counts_.peakUsedBytes = counts_.usedBytes;
  takenBytes_ = 0;
  latestSweep_ = now_;
}

size_t BlockCache::recentPeak() const { return std::max(counts_.peakUsedBytes, previousPeak_); }

void BlockCache::release(const ReleasedBlocks& released) const {
  for (const auto& [block, bytes] : released) source_.release(block, bytes);
}

}  // namespace agspeed::runtime
