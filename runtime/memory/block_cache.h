// SPDX-License-Identifier: Apache-2.0
// BlockCache: keeps freed blocks of memory for later requests of the same size class.
//
// The C library returns large blocks to the kernel when they are freed. The kernel then maps and clears their pages
// again, page by page, when the next step of training writes to them. A kept block has its pages already.
//
// A *block* belongs to the cache (idle) or to the caller (used). Sizes are rounded up to classes, of which there are 16
// for each power of two, so a block is at most 1/16 larger than requested. The block that was given back last is taken
// first, because processor caches may still hold it.
//
// The cache is bounded. Three rules release idle blocks, the longest idle ones first:
//   - idle bytes stay within Limits::idleBytes;
//   - used and idle bytes together exceed the recent peak of used bytes by at most a quarter and Limits::slackBytes;
//   - a block that no request took for two sweeps is released. A sweep comes each time when requests have taken 32
//     times the peak, which is after 10 to 30 steps of training.
// If the system has no memory left, take() releases all idle blocks and tries again.
//
// Thread-safe. A block may be given back by another thread than the one that took it. Blocks that are in use at the end
// of the cache's life stay valid but can no longer be given back, so a cache for storage must outlive all storage.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace agspeed::runtime {

/// Where blocks come from. allocate() returns nullptr if there is no memory left. Both functions are thread-safe.
struct BlockSource {
  void* (*allocate)(size_t bytes);
  void (*release)(void* block, size_t bytes);
};

class BlockCache {
 public:
  /// Smaller requests are refused by design: the C library keeps small blocks itself.
  static constexpr size_t kSmallest = size_t{1} << 20;

  struct Limits {
    size_t idleBytes = 0;   ///< 0: nothing is kept
    size_t slackBytes = 0;  ///< the most by which idle blocks may raise the peak of used bytes
  };
  struct Counts {
    size_t usedBytes = 0;
    size_t idleBytes = 0;
    size_t peakUsedBytes = 0;  ///< the recent peak, see above
    uint64_t numReused = 0;    ///< requests that got an idle block
    uint64_t numNew = 0;       ///< requests that got new memory
  };
  /// A block as it is given back. isMarked: as passed to take().
  struct Given {
    size_t bytes = 0;  ///< of its size class; 0: the address is no used block of this cache
    bool isMarked = false;
  };

  explicit BlockCache(BlockSource source) : source_(source) {}
  BlockCache(const BlockCache&) = delete;
  BlockCache& operator=(const BlockCache&) = delete;
  /// Releases the idle blocks.
  ~BlockCache();

  /// The bytes of the block that a request for `bytes` gets. Requires: bytes >= kSmallest.
  static size_t classBytes(size_t bytes);

  /// A block of classBytes(bytes), or nullptr if the system has no memory left even without the idle blocks. Its
  /// content is undefined. isMarked: returned by give(). Requires: bytes >= kSmallest.
  void* take(size_t bytes, bool isMarked = false);
  /// Gives a block back. Does nothing with an address that is no used block of this cache.
  Given give(void* block);
  /// Sets the limits and releases the blocks above them. Without a call, nothing is kept.
  void limit(const Limits& limits);
  /// Releases all idle blocks. Returns their bytes.
  size_t clear();
  Counts counts() const;

  // For fork(), in this order: prepareFork in the parent, then one of the others in parent and child. Nothing is kept
  // in the child: its copies of idle blocks are released with its next call.
  void prepareFork();
  void parentForked();
  void childForked();

 private:
  struct Idle {
    void* block;
    uint64_t since;  ///< the value of now_ when it was given back
  };
  struct Used {
    size_t bytes;
    bool isMarked;
  };
  struct Released {
    void* block;
    size_t bytes;
  };
  using ReleasedBlocks = std::vector<Released>;

  // All functions below: under mutex_. They collect blocks, which are released without the lock.
  void* takeIdle(size_t bytes);
  void noteUse(void* block, size_t bytes, bool isMarked);
  void dropOldest(ReleasedBlocks& released);
  void dropAll(ReleasedBlocks& released);
  void keepWithinLimits(size_t wanted, ReleasedBlocks& released);
  void sweepIfDue(size_t taken, ReleasedBlocks& released);
  size_t recentPeak() const;

  void release(const ReleasedBlocks& released) const;

  const BlockSource source_;
  mutable std::mutex mutex_;
  Limits limits_;
  std::unordered_map<size_t, std::vector<Idle>> idle_;  ///< by bytes; each list from the longest idle to the latest
  std::unordered_map<void*, Used> used_;
  Counts counts_;             ///< peakUsedBytes: of the present interval between sweeps
  size_t previousPeak_ = 0;   ///< of the interval before
  size_t takenBytes_ = 0;     ///< since the latest sweep
  uint64_t now_ = 0;          ///< counts the blocks that were given back
  uint64_t latestSweep_ = 0;  ///< the value of now_ at the latest sweep
};

}  // namespace agspeed::runtime
