// SPDX-License-Identifier: Apache-2.0
#include "tests/backends/simt/block_runner.h"

#include <algorithm>

namespace agspeed::simt {

namespace {

constexpr uint32_t kWarp = 32;

// The runner whose fibers run on this host thread.
thread_local BlockRunner* active = nullptr;

}  // namespace

struct Intrinsics {
  static BlockRunner& runner() { return *active; }
  static uint32_t threadX() { return runner().current_ % runner().block_.x; }
  static uint32_t threadY() { return runner().current_ / runner().block_.x % runner().block_.y; }
  static uint32_t blockX() { return runner().blockIndex_.x; }
  static uint32_t blockThreadsX() { return runner().block_.x; }
  static uint32_t blockThreadsY() { return runner().block_.y; }

  static void blockBarrier(uint32_t) { runner().waitFor(BlockRunner::Wait::kBlock); }
  static void warpBarrier(uint32_t) { runner().waitFor(BlockRunner::Wait::kWarp); }

  static uint32_t shuffleXor(uint32_t, uint32_t value, uint32_t distance, uint32_t) {
    BlockRunner& all = runner();
    BlockRunner::Thread& self = all.threads_[all.current_];
    self.value = value;
    self.distance = distance;
    all.waitFor(BlockRunner::Wait::kShuffle);
    return self.value;
  }
};

const std::vector<std::pair<const char*, void*>>& BlockRunner::intrinsics() {
  static const std::vector<std::pair<const char*, void*>> kTable = {
      {"llvm_nvvm_bar_warp_sync", reinterpret_cast<void*>(&Intrinsics::warpBarrier)},
      {"llvm_nvvm_barrier_cta_sync_aligned_all", reinterpret_cast<void*>(&Intrinsics::blockBarrier)},
      {"llvm_nvvm_read_ptx_sreg_ctaid_x", reinterpret_cast<void*>(&Intrinsics::blockX)},
      {"llvm_nvvm_read_ptx_sreg_ntid_x", reinterpret_cast<void*>(&Intrinsics::blockThreadsX)},
      {"llvm_nvvm_read_ptx_sreg_ntid_y", reinterpret_cast<void*>(&Intrinsics::blockThreadsY)},
      {"llvm_nvvm_read_ptx_sreg_tid_x", reinterpret_cast<void*>(&Intrinsics::threadX)},
      {"llvm_nvvm_read_ptx_sreg_tid_y", reinterpret_cast<void*>(&Intrinsics::threadY)},
      {"llvm_nvvm_shfl_sync_bfly_i32", reinterpret_cast<void*>(&Intrinsics::shuffleXor)},
  };
  return kTable;
}

BlockRunner::BlockRunner(KernelEntry entry, const void* parameters, Dim3 grid, Dim3 block)
    : entry_(entry), parameters_(parameters), grid_(grid), block_(block) {}

Status BlockRunner::run(Dim3 blockIndex) {
  blockIndex_ = blockIndex;
  threads_.clear();
  threads_.resize(numThreads());
  ready_.clear();
  for (uint32_t thread = numThreads(); thread-- > 0;) ready_.push_back(thread);
  BlockRunner* outer = std::exchange(active, this);
  while (!ready_.empty()) {
    uint32_t thread = ready_.back();
    ready_.pop_back();
    resume(thread);
  }
  active = outer;
  return describeStuck();
}

void BlockRunner::resume(uint32_t thread) {
  current_ = thread;
  Thread& self = threads_[thread];
  if (!self.fiber) {
    if (idleFibers_.empty()) idleFibers_.push_back(std::make_unique<Fiber>(&BlockRunner::fiberBody));
    self.fiber = std::move(idleFibers_.back());
    idleFibers_.pop_back();
  }
  self.fiber->resume();
  if (threads_[current_].wait == Wait::kEnded) idleFibers_.push_back(std::move(threads_[current_].fiber));
}

// A fiber whose thread has ended runs the next thread, or waits for one.
void BlockRunner::fiberBody() {
  for (;;) {
    active->runThreads();
    BlockRunner& all = *active;
    all.threads_[all.current_].fiber->switchBack();
  }
}

void BlockRunner::runThreads() {
  for (;;) {
    entry_(parameters_);
    threads_[current_].wait = Wait::kEnded;
    bool isNextFresh = !ready_.empty() && !threads_[ready_.back()].fiber;
    if (!isNextFresh) return;
    uint32_t next = ready_.back();
    ready_.pop_back();
    threads_[next].fiber = std::move(threads_[current_].fiber);
    current_ = next;
  }
}

// The last thread to arrive releases the others, and continues first.
void BlockRunner::waitFor(Wait what) {
  uint32_t self = current_;
  threads_[self].wait = what;
  uint32_t first = what == Wait::kBlock ? 0 : self / kWarp * kWarp;
  uint32_t last = what == Wait::kBlock ? numThreads() : std::min(first + kWarp, numThreads());
  arrive(what, first, last);
  if (threads_[self].wait == Wait::kNothing) return;
  threads_[self].fiber->switchBack();
}

void BlockRunner::arrive(Wait what, uint32_t first, uint32_t last) {
  for (uint32_t thread = first; thread < last; ++thread) {
    if (threads_[thread].wait != what) return;
  }
  if (what == Wait::kShuffle) exchange(first, last);
  for (uint32_t thread = first; thread < last; ++thread) {
    threads_[thread].wait = Wait::kNothing;
    if (thread != current_) ready_.push_back(thread);
  }
}

void BlockRunner::exchange(uint32_t first, uint32_t last) {
  uint32_t given[kWarp];
  for (uint32_t thread = first; thread < last; ++thread) {
    given[thread - first] = threads_[thread].value;
    hasMixedShuffle_ |= threads_[thread].distance != threads_[first].distance;
  }
  for (uint32_t thread = first; thread < last; ++thread) {
    uint32_t source = (thread - first) ^ threads_[thread].distance;
    if (source < last - first) threads_[thread].value = given[source];
  }
}

Status BlockRunner::describeStuck() const {
  constexpr const char* kNames[] = {"nothing", "a shuffle", "a warp barrier", "a barrier", "nothing: it has ended"};
  if (hasMixedShuffle_) return internalError("threads of a warp shuffle over different distances");
  for (size_t i = 0; i < threads_.size(); ++i) {
    if (threads_[i].wait == Wait::kEnded) continue;
    return internalError("thread {} of block {} waits at {} that other threads do not reach", i, blockIndex_.x,
                         kNames[static_cast<size_t>(threads_[i].wait)]);
  }
  return {};
}

}  // namespace agspeed::simt
