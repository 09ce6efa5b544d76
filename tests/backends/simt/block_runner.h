// SPDX-License-Identifier: Apache-2.0
// BlockRunner: runs the threads of one block, each on a fiber, and the operations between them. A thread runs until it
// must wait. Then the thread that became ready last continues, so that a warp runs ahead of the others as far as it
// can.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/status.h"
#include "tests/backends/simt/fiber.h"
#include "tests/backends/simt/simt_runner.h"

namespace agspeed::simt {

using KernelEntry = void (*)(const void* parameters);

class BlockRunner {
 public:
  BlockRunner(KernelEntry entry, const void* parameters, Dim3 grid, Dim3 block);

  /// Runs all threads of a block to their end. Errors: kInternal if some threads wait for an event that cannot come.
  Status run(Dim3 blockIndex);

  /// Names and addresses of the functions that replace intrinsics: llvm.nvvm.x.y becomes "llvm_nvvm_x_y".
  static const std::vector<std::pair<const char*, void*>>& intrinsics();

 private:
  friend struct Intrinsics;
  enum class Wait : uint8_t { kNothing, kShuffle, kWarp, kBlock, kEnded };
  struct Thread {
    std::unique_ptr<Fiber> fiber;  ///< null until started, or after its fiber has switched to another thread
    Wait wait = Wait::kNothing;
    uint32_t value = 0;  ///< the input of a shuffle, then its result
    uint32_t distance = 0;
  };

  uint32_t numThreads() const { return block_.x * block_.y * block_.z; }
  static void fiberBody();
  void runThreads();
  void resume(uint32_t thread);
  void waitFor(Wait what);
  void arrive(Wait what, uint32_t first, uint32_t last);
  void exchange(uint32_t first, uint32_t last);
  Status describeStuck() const;

  KernelEntry entry_;
  const void* parameters_;
  Dim3 grid_;
  Dim3 block_;
  Dim3 blockIndex_;
  std::vector<Thread> threads_;
  std::vector<uint32_t> ready_;  ///< used as a stack
  std::vector<std::unique_ptr<Fiber>> idleFibers_;
  uint32_t current_ = 0;
  bool hasMixedShuffle_ = false;
};

}  // namespace agspeed::simt
