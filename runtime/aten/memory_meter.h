// SPDX-License-Identifier: Apache-2.0
// MemoryMeter: live and peak bytes of CPU tensor storage, over every thread of the process.
//
// While a meter runs, agspeed's allocator (cpu_allocator.h) stands before torch's and counts. It remembers each counted
// block until the block is freed, also after the meter stopped and on any thread. Freeing subtracts the block. So each
// allocation takes a lock while a meter runs. A stopped meter costs nothing.
// (c10's own reporting hook is per thread and shares its slot with torch.profiler. The profiler still sees every
// allocation.)
//
// Counted: storage allocated since start(), in bytes that are really allocated, plus arenas of compiled
// regions while a call uses them. Not counted: storage that existed before, device memory, memory that MKL allocates
// itself. One meter runs at a time; the functions may be called from any thread.
#pragma once

#include <cstdint>

#include "runtime/base/status.h"

namespace agspeed::runtime::aten {

class MemoryMeter {
 public:
  MemoryMeter() = default;
  MemoryMeter(const MemoryMeter&) = delete;
  MemoryMeter& operator=(const MemoryMeter&) = delete;
  /// Stops a running meter.
  ~MemoryMeter();

  /// Starts counting from zero. Errors: kUnavailable when another meter runs, kUnsupported when torch's CPU allocator
  /// was replaced by one that cannot be wrapped.
  Status start();
  /// Stops counting; the counters keep their values. Does nothing when stopped.
  void stop();
  /// Sets the peak to the current live bytes.
  void resetPeak();
  /// Bytes alive now that were not alive at start(). Negative if storage that an earlier run counted has been freed
  /// since.
  int64_t liveBytes() const;
  /// Largest liveBytes() since start() or resetPeak(), at least 0.
  int64_t peakBytes() const;
  bool isRunning() const { return running_; }

 private:
  bool running_ = false;
  int64_t baseline_ = 0;   ///< the process-wide count at start()
  int64_t finalLive_ = 0;  ///< the counters' values when the meter stopped
  int64_t finalPeak_ = 0;
};

}  // namespace agspeed::runtime::aten
