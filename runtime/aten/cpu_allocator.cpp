// SPDX-License-Identifier: Apache-2.0
#include "runtime/aten/cpu_allocator.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>
#include <gnu/libc-version.h>
#include <malloc.h>
#include <pthread.h>

#include <mutex>
#include <string>
#include <unordered_set>

#include "runtime/memory/arena_pool.h"
#include "runtime/memory/mapped_pages.h"

C10_DECLARE_bool(caffe2_cpu_allocator_do_junk_fill);
C10_DECLARE_bool(caffe2_cpu_allocator_do_zero_fill);

namespace agspeed::runtime::aten {
namespace {

#if defined(__SANITIZE_ADDRESS__)
constexpr bool kFindsUseAfterFree = true;
#else
constexpr bool kFindsUseAfterFree = false;
#endif

// Storage may be freed after static destruction has begun, so the objects of this file are never destroyed.
BlockCache& cache() {
  static auto* cache = new BlockCache({&mapPages, &unmapPages});
  return *cache;
}

std::atomic<c10::DeleterFnPtr> originalDelete{nullptr};

/// The blocks of torch's allocator that were counted. A block needs an entry because raw allocations, such as oneDNN's
/// scratch memory, are freed by the allocator's raw deleter, which gets blocks of both kinds.
class CountedBlocks {
 public:
  void add(const void* block) {
    const std::lock_guard lock(mutex_);
    blocks_.insert(block);
    size_.store(blocks_.size(), std::memory_order_relaxed);
  }
  /// Returns whether the block was counted.
  bool remove(const void* block) {
    if (size_.load(std::memory_order_relaxed) == 0) return false;
    const std::lock_guard lock(mutex_);
    const bool isFound = blocks_.erase(block) != 0;
    size_.store(blocks_.size(), std::memory_order_relaxed);
    return isFound;
  }
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  std::mutex mutex_;
  std::unordered_set<const void*> blocks_;
  std::atomic<size_t> size_{0};  ///< of `blocks_`, so that nothing is locked while it is empty
};

CountedBlocks& countedBlocks() {
  static auto* blocks = new CountedBlocks;
  return *blocks;
}

/// Frees a block of torch's allocator, which may have been counted.
void freeOriginal(void* data) {
  if (countedBlocks().remove(data)) cpuByteCounter().add(-static_cast<int64_t>(malloc_usable_size(data)));
  originalDelete.load(std::memory_order_acquire)(data);
}

/// The deleter of blocks of the cache, and our allocator's raw deleter: so it may also get a block of torch's.
void freeBlock(void* data) {
  const BlockCache::Given given = cache().give(data);
  if (given.bytes == 0) return freeOriginal(data);
  if (given.isMarked) cpuByteCounter().add(-static_cast<int64_t>(given.bytes));
  c10::profiledCPUMemoryReporter().Delete(data);
}

class InterposedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const bool isCounted = counts_.load(std::memory_order_relaxed);
    if (bytes >= BlockCache::kSmallest && retains_.load(std::memory_order_relaxed)) {
      if (void* block = cache().take(bytes, isCounted); block != nullptr) {
        if (isCounted) cpuByteCounter().add(static_cast<int64_t>(BlockCache::classBytes(bytes)));
        c10::profiledCPUMemoryReporter().New(block, bytes);
        return {block, block, &freeBlock, c10::Device(c10::DeviceType::CPU)};
      }
    }
    c10::DataPtr data = allocateOriginal(bytes);
    if (isCounted && data.get() != nullptr && data.compare_exchange_deleter(originalDelete.load(), &freeOriginal)) {
      countedBlocks().add(data.get());
      cpuByteCounter().add(static_cast<int64_t>(malloc_usable_size(data.get())));
    }
    return data;
  }
  c10::DeleterFnPtr raw_deleter() const override { return &freeBlock; }
  void copy_data(void* destination, const void* source, size_t bytes) const override {
    original_.load(std::memory_order_acquire)->copy_data(destination, source, bytes);
  }

  Status install() {
    const std::lock_guard lock(mutex_);
    c10::Allocator* current = c10::GetCPUAllocator();
    if (current == this) return {};
    if (isInUse_) return unsupported("other code has replaced agspeed's CPU allocator, and may call it");
    if (current->raw_deleter() == nullptr) {
      return unsupported("this process replaced torch's CPU allocator by one whose storage cannot be counted");
    }
    original_.store(current, std::memory_order_release);
    originalDelete.store(current->raw_deleter(), std::memory_order_release);
    c10::SetCPUAllocator(this);
    isInUse_ = isInstalled();
    if (isInUse_) return {};
    return unsupported("another component holds torch's CPU allocator with a higher priority");
  }

  void setRetaining(bool retains) {
    retains_ = retains;
    removeIfUnused();
  }
  void setCounting(bool counts) {
    counts_ = counts;
    removeIfUnused();
  }
  /// Without the lock, which another thread of the parent may have held.
  void childForked() { retains_ = false; }
  bool isRetaining() const { return retains_; }
  bool isInstalled() const { return c10::GetCPUAllocator() == this; }
  /// The allocator that torch would use without this one.
  c10::Allocator* below() const { return isInstalled() ? original_.load() : c10::GetCPUAllocator(); }

 private:
  /// If there is no memory left, releases idle blocks and tries again. Throws torch's own error.
  c10::DataPtr allocateOriginal(size_t bytes) {
    c10::Allocator* original = original_.load(std::memory_order_acquire);
    try {
      return original->allocate(bytes);
    } catch (const c10::Error&) {
      if (cache().clear() == 0) throw;
    }
    return original->allocate(bytes);
  }

  void removeIfUnused() {
    const std::lock_guard lock(mutex_);
    if (retains_ || counts_ || !isInstalled()) return;
    c10::SetCPUAllocator(original_);
    isInUse_ = false;
  }

  std::mutex mutex_;
  bool isInUse_ = false;  ///< under mutex_: torch calls it, or a replacement may that has come since
  std::atomic<bool> retains_{false};
  std::atomic<bool> counts_{false};
  std::atomic<c10::Allocator*> original_{nullptr};  ///< valid from the first install() on
};

InterposedAllocator& allocator() {
  static auto* allocator = new InterposedAllocator;
  return *allocator;
}

void handleForks() {
  const auto before = [] {
    countedBlocks().lock();
    cache().prepareFork();
  };
  const auto inParent = [] {
    cache().parentForked();
    countedBlocks().unlock();
  };
  const auto inChild = [] {
    cache().childForked();
    countedBlocks().unlock();
    allocator().childForked();
  };
  static const int registered = pthread_atfork(before, inParent, inChild);
  static_cast<void>(registered);
}

/// The file that provides malloc, if it is not the C library; else an empty text.
std::string foreignMalloc() {
  Dl_info found{};
  Dl_info library{};
  if (dladdr(dlsym(RTLD_DEFAULT, "malloc"), &found) == 0) return {};
  if (dladdr(reinterpret_cast<void*>(&gnu_get_libc_version), &library) == 0) return {};
  return found.dli_fbase == library.dli_fbase || found.dli_fname == nullptr ? "" : found.dli_fname;
}

}  // namespace

void ByteCounter::raisePeakTo(int64_t bytes) {
  int64_t seen = peak.load(std::memory_order_relaxed);
  while (bytes > seen && !peak.compare_exchange_weak(seen, bytes, std::memory_order_relaxed)) {
  }
}

void ByteCounter::add(int64_t bytes) {
  const int64_t now = live.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  if (bytes > 0) raisePeakTo(now + ArenaPool::bytesInUse());
}

ByteCounter& cpuByteCounter() {
  static ByteCounter counter;
  return counter;
}

std::string whyNotRetained() {
  if (kFindsUseAfterFree) return "this build of agspeed looks for uses of freed memory";
  if (std::string name = foreignMalloc(); !name.empty()) {
    return "this process has another malloc (" + name + "), which keeps memory by rules of its own";
  }
  if (allocator().below() != c10::GetDefaultCPUAllocator()) return "this process replaced torch's CPU allocator";
  if (FLAGS_caffe2_cpu_allocator_do_zero_fill || FLAGS_caffe2_cpu_allocator_do_junk_fill) {
    return "torch is set to fill new CPU memory";
  }
  return {};
}

Status startRetaining(const BlockCache::Limits& limits) {
  if (const std::string reason = whyNotRetained(); !reason.empty()) return unsupported(reason);
  handleForks();
  cache().limit(limits);
  if (Status status = allocator().install(); !status.isOk()) return status;
  allocator().setRetaining(true);
  return {};
}

void stopRetaining() {
  allocator().setRetaining(false);
  cache().limit({});
}

RetainedMemory retainedMemory() {
  const bool isOn = allocator().isRetaining();
  return {cache().counts(), isOn, isOn && !allocator().isInstalled()};
}

Status startCounting() {
  handleForks();
  if (Status status = allocator().install(); !status.isOk()) return status;
  allocator().setCounting(true);
  return {};
}

void stopCounting() { allocator().setCounting(false); }

}  // namespace agspeed::runtime::aten
