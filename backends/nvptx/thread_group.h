// SPDX-License-Identifier: Apache-2.0
// ThreadGroup: the threads that share a row (see kernel_plan.h), and their common operations. The group's size is known
// only at run time: a power of two, within a warp or of several whole warps.
//
// All threads of the block must reach each call together, because shuffles involve all threads of a warp.
#pragma once

#include <vector>

#include "compiler/kernel/emit/emit_loop.h"
#include "mlir/IR/BuiltinOps.h"
#include "passes/kernel/value_builder.h"

namespace agspeed::backends::nvptx {

/// Special registers of a thread, as i64.
enum class ThreadRegister : uint8_t { kThreadX, kThreadY, kBlockX, kGroupThreads, kGroupsOfBlock };
passes::Val readRegister(passes::ValueBuilder& builder, ThreadRegister which);

class ThreadGroup {
 public:
  /// Declares shared memory named `sharedName` in the module for up to `maxReductions` at a time, unless the module has
  /// it already. Emits the group's numbers at the insertion point.
  ThreadGroup(passes::ValueBuilder& builder, mlir::ModuleOp module, const std::string& sharedName, int maxReductions);

  passes::Val rank() const { return rank_; }  ///< i64: this thread's place in its group
  passes::Val size() const { return size_; }  ///< i64

  /// Combines each value over the group's threads; all threads get the same bits.
  std::vector<passes::Val> reduce(const std::vector<compiler::Reduction>& reductions, std::vector<passes::Val> values);
  /// Makes earlier memory writes of the group's threads visible to all of them.
  void synchronize();

 private:
  passes::Val spansWarps();
  passes::Val shuffleXor(passes::Val value, int distance);
  passes::Val combineAcross(const compiler::Reduction& reduction, passes::Val value, int distance);
  passes::Val reduceInWarp(const compiler::Reduction& reduction, passes::Val value);
  std::vector<passes::Val> reduceOverWarps(const std::vector<compiler::Reduction>& reductions,
                                           const std::vector<passes::Val>& values);
  mlir::Value slot(int reduction, passes::Val warp);
  void callBarrier(const char* intrinsic, int32_t argument);

  passes::ValueBuilder& b_;
  mlir::Value shared_;
  passes::Val rank_;
  passes::Val size_;
};

}  // namespace agspeed::backends::nvptx
