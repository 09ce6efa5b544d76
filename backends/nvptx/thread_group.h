// SPDX-License-Identifier: Apache-2.0
// ThreadGroup: the threads that share a row (see kernel_plan.h), and what they do together. The group's size is known
// at run time only: a power of two, within a warp or of several whole warps.
//
// Every thread of the block must reach each call together: shuffles name all threads of a warp.
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
  /// Declares shared memory for up to `maxReductions` at a time in the module, under the name `sharedName`; none where
  /// the module has it already. Emits the group's numbers at the insertion point.
  ThreadGroup(passes::ValueBuilder& builder, mlir::ModuleOp module, const std::string& sharedName, int maxReductions);

  passes::Val rank() const { return rank_; }  ///< i64: this thread's place in its group
  passes::Val size() const { return size_; }  ///< i64

  /// Each value combined over the group's threads, the same bits in all of them.
  std::vector<passes::Val> reduce(const std::vector<compiler::Reduction>& reductions, std::vector<passes::Val> values);
  /// What threads of the group did to memory before is seen by all of them after.
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
