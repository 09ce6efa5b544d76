// SPDX-License-Identifier: Apache-2.0
// ColumnPass: the columns of a row that belong to one thread, as chunks of neighbouring columns, and one pass over them
// that may carry reductions. The chunks are known at compile time (one, or a few that the group's threads interleave),
// or a loop counts them.
//
// A thread's reduction keeps one accumulator per lane, over its chunks in order; lanes are folded by halving at the
// end.
#pragma once

#include <functional>
#include <vector>

#include "backends/nvptx/device_operands.h"
#include "backends/nvptx/thread_group.h"
#include "compiler/kernel/emit/emit_loop.h"

namespace agspeed::backends::nvptx {

class ColumnPass {
 public:
  /// One chunk. Its isActive is not read, because forEach() gets it.
  static ColumnPass ofChunk(passes::ValueBuilder& builder, const ColumnChunk& chunk);
  /// Chunk i of a thread is chunk (rank + i * size) of the row. numChunks 0: as many as the row needs, in a loop.
  static ColumnPass ofGroup(passes::ValueBuilder& builder, const ThreadGroup& group, passes::Val numColumns, int lanes,
                            int numChunks);

  bool isLoop() const { return isLoop_; }
  int numChunks() const { return isLoop_ ? 1 : static_cast<int>(chunks_.size()); }

  /// Emits code for one chunk, which has the index `place`, and returns the value to add to each reduction.
  using Body = std::function<std::vector<passes::Val>(const ColumnChunk& chunk, int place)>;
  /// Emits one pass. `isActive`: whether stores happen. Returns this thread's part of each reduction, a scalar.
  std::vector<passes::Val> forEach(const std::vector<compiler::Reduction>& reductions, passes::Val isActive,
                                   const Body& body);

 private:
  ColumnPass(passes::ValueBuilder& builder, int lanes) : b_(&builder), lanes_(lanes) {}

  using Accumulators = mlir::SmallVector<mlir::Value>;
  Accumulators neutral(const std::vector<compiler::Reduction>& reductions);
  Accumulators emitChunk(const std::vector<compiler::Reduction>& reductions, const ColumnChunk& chunk, int place,
                         mlir::ValueRange accumulated, const Body& body);
  Accumulators emitLoop(const std::vector<compiler::Reduction>& reductions, passes::Val isActive, const Body& body);

  passes::ValueBuilder* b_;
  int lanes_;
  bool isLoop_ = false;
  std::vector<ColumnChunk> chunks_;  ///< only the first one if isLoop_
  passes::Val step_;                 ///< columns between two chunks of a loop
};

}  // namespace agspeed::backends::nvptx
