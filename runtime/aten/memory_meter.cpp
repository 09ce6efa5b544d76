// SPDX-License-Identifier: Apache-2.0
#include "runtime/aten/memory_meter.h"

#include <atomic>

#include "runtime/aten/cpu_allocator.h"
#include "runtime/memory/arena_pool.h"

namespace agspeed::runtime::aten {
namespace {

std::atomic<bool> meterRuns{false};

int64_t liveNow() { return cpuByteCounter().live.load(std::memory_order_relaxed) + ArenaPool::bytesInUse(); }

}  // namespace

MemoryMeter::~MemoryMeter() { stop(); }

Status MemoryMeter::start() {
  if (running_ || meterRuns.exchange(true)) {
    return unavailable("a MemoryMeter is already running in this process: stop it first");
  }
  if (Status status = startCounting(); !status.isOk()) {
    meterRuns = false;
    return status;
  }
  baseline_ = liveNow();
  cpuByteCounter().peak = baseline_;
  running_ = true;
  return {};
}

void MemoryMeter::stop() {
  if (!running_) return;
  finalLive_ = liveBytes();
  finalPeak_ = peakBytes();
  stopCounting();
  running_ = false;
  meterRuns = false;
}

void MemoryMeter::resetPeak() { cpuByteCounter().peak = liveNow(); }

int64_t MemoryMeter::liveBytes() const { return running_ ? liveNow() - baseline_ : finalLive_; }

int64_t MemoryMeter::peakBytes() const { return running_ ? cpuByteCounter().peak.load() - baseline_ : finalPeak_; }

}  // namespace agspeed::runtime::aten
