// SPDX-License-Identifier: Apache-2.0
// ArenaPool: buffers for the planned memory of calls in flight. There is one pool per Executable. Its entries share it,
// so that a forward and the backward after it use the same pages.
//
// A call takes a buffer and returns it at its end. The pool keeps a few idle buffers and frees the rest. acquire and
// release are lock-free and may be called from any thread. A Buffer belongs to one call at a time and must not outlive
// the pool.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace agspeed::runtime {

class ArenaPool {
 public:
  static constexpr size_t kAlignment = 64;  ///< of every buffer, in bytes

  struct FreeDeleter {
    void operator()(std::byte* data) const;
  };
  /// An aligned block. A default Buffer is empty.
  struct Buffer {
    std::unique_ptr<std::byte, FreeDeleter> data;
    int64_t bytes = 0;
  };

  ArenaPool() = default;
  ArenaPool(const ArenaPool&) = delete;
  ArenaPool& operator=(const ArenaPool&) = delete;
  ~ArenaPool();

  /// A buffer of at least `bytes`; an empty one if the system has no memory left or bytes is 0.
  Buffer acquire(int64_t bytes);
  void release(Buffer buffer);

  /// Bytes of all arenas in use now, in the whole process; a memory meter adds them to its own count.
  static int64_t bytesInUse();

 private:
  static constexpr size_t kIdleBuffers = 4;
  std::array<std::atomic<Buffer*>, kIdleBuffers> idle_{};
};

}  // namespace agspeed::runtime
