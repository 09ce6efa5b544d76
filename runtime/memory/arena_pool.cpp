// SPDX-License-Identifier: Apache-2.0
#include "runtime/memory/arena_pool.h"

#include <cstdlib>
#include <utility>

namespace agspeed::runtime {
namespace {

std::atomic<int64_t> usedBytes{0};

int64_t roundUp(int64_t bytes) {
  constexpr auto alignment = static_cast<int64_t>(ArenaPool::kAlignment);
  return (bytes + alignment - 1) / alignment * alignment;
}

}  // namespace

void ArenaPool::FreeDeleter::operator()(std::byte* data) const { std::free(data); }

ArenaPool::~ArenaPool() {
  for (std::atomic<Buffer*>& slot : idle_) delete slot.load();
}

ArenaPool::Buffer ArenaPool::acquire(int64_t bytes) {
  if (bytes <= 0) return {};
  for (std::atomic<Buffer*>& slot : idle_) {
    std::unique_ptr<Buffer> found(slot.exchange(nullptr, std::memory_order_acquire));
    if (found == nullptr || found->bytes < bytes) continue;  // a buffer that is too small is freed here
    usedBytes.fetch_add(found->bytes, std::memory_order_relaxed);
    return std::move(*found);
  }
  Buffer fresh;
  fresh.data.reset(static_cast<std::byte*>(std::aligned_alloc(kAlignment, roundUp(bytes))));
  if (fresh.data == nullptr) return {};
  fresh.bytes = roundUp(bytes);
  usedBytes.fetch_add(fresh.bytes, std::memory_order_relaxed);
  return fresh;
}

void ArenaPool::release(Buffer buffer) {
  if (buffer.data == nullptr) return;
  usedBytes.fetch_sub(buffer.bytes, std::memory_order_relaxed);
  auto returned = std::make_unique<Buffer>(std::move(buffer));
  for (std::atomic<Buffer*>& slot : idle_) {
    Buffer* expected = nullptr;
    if (slot.compare_exchange_strong(expected, returned.get(), std::memory_order_release)) {
      returned.release();
      return;
    }
  }
}

int64_t ArenaPool::bytesInUse() { return usedBytes.load(std::memory_order_relaxed); }

}  // namespace agspeed::runtime
