// SPDX-License-Identifier: Apache-2.0
#include "runtime/aten/memory_meter.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <malloc.h>

#include <atomic>

#include "runtime/memory/arena_pool.h"

namespace agspeed::runtime::aten {
namespace {

std::atomic<bool> meterRuns{false};
std::atomic<int64_t> live{0};
std::atomic<int64_t> peak{0};
std::atomic<c10::DeleterFnPtr> originalDelete{nullptr};

int64_t liveNow() { return live.load(std::memory_order_relaxed) + ArenaPool::bytesInUse(); }

void raisePeakTo(int64_t bytes) {
  int64_t seen = peak.load(std::memory_order_relaxed);
  while (bytes > seen && !peak.compare_exchange_weak(seen, bytes, std::memory_order_relaxed)) {
  }
}

void countedDelete(void* data) {
  live.fetch_sub(static_cast<int64_t>(malloc_usable_size(data)), std::memory_order_relaxed);
  originalDelete.load(std::memory_order_acquire)(data);
}

class CountingAllocator final : public c10::Allocator {
 public:
  void wrap(c10::Allocator* original) {
    original_ = original;
    originalDelete.store(original->raw_deleter(), std::memory_order_release);
  }
  c10::Allocator* original() const { return original_; }

  c10::DataPtr allocate(size_t bytes) override {
    c10::DataPtr data = original_->allocate(bytes);
    if (data.get() != nullptr && data.compare_exchange_deleter(originalDelete.load(), &countedDelete)) {
      const auto size = static_cast<int64_t>(malloc_usable_size(data.get()));
      raisePeakTo(live.fetch_add(size, std::memory_order_relaxed) + size + ArenaPool::bytesInUse());
    }
    return data;
  }
  c10::DeleterFnPtr raw_deleter() const override { return &countedDelete; }
  void copy_data(void* destination, const void* source, size_t bytes) const override {
    original_->copy_data(destination, source, bytes);
  }

 private:
  c10::Allocator* original_ = nullptr;
};

// Never destroyed, because storage may be freed after static destruction has begun.
CountingAllocator& countingAllocator() {
  static auto* allocator = new CountingAllocator;
  return *allocator;
}

}  // namespace

MemoryMeter::~MemoryMeter() { stop(); }

Status MemoryMeter::start() {
  if (running_ || meterRuns.exchange(true)) {
    return unavailable("a MemoryMeter is already running in this process: stop it first");
  }
  c10::Allocator* original = c10::GetCPUAllocator();
  if (original->raw_deleter() == nullptr) {
    meterRuns = false;
    return unsupported("this process replaced torch's CPU allocator by one whose storage cannot be counted");
  }
  countingAllocator().wrap(original);
  c10::SetCPUAllocator(&countingAllocator());
  if (c10::GetCPUAllocator() != &countingAllocator()) {
    meterRuns = false;
    return unsupported("another component holds torch's CPU allocator with a higher priority");
  }
  baseline_ = liveNow();
  peak = baseline_;
  running_ = true;
  return {};
}

void MemoryMeter::stop() {
  if (!running_) return;
  finalLive_ = liveBytes();
  finalPeak_ = peakBytes();
  c10::SetCPUAllocator(countingAllocator().original());
  running_ = false;
  meterRuns = false;
}

void MemoryMeter::resetPeak() { peak = liveNow(); }

int64_t MemoryMeter::liveBytes() const { return running_ ? liveNow() - baseline_ : finalLive_; }

int64_t MemoryMeter::peakBytes() const { return running_ ? peak.load() - baseline_ : finalPeak_; }

}  // namespace agspeed::runtime::aten
