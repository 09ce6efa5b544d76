// SPDX-License-Identifier: Apache-2.0
// SourceRows: copies the rows of a source that a band of results reads to a tile. The tile has borders around them if
// taps outside of the source take part.
#pragma once

#include <optional>

#include "compiler/graph/window_plan.h"
#include "compiler/kernel/emit/window/window_memory.h"

namespace agspeed::compiler {

class SourceRows {
 public:
  /// Allocates the tile. `border`: the value of positions outside of the source; nullopt: they are never read.
  SourceRows(passes::ValueBuilder& b, WindowMemory& memory, int operand, const WindowPlan& plan,
             std::optional<double> border);

  const LaneTile& tile() const { return tile_; }

  /// Copies the rows for groups [firstGroup, firstGroup + numGroups). prepare(loaded, row, column): the value that the
  /// tile gets instead of an element; null: the element itself.
  void pack(passes::Val firstGroup, passes::Val numGroups,
            llvm::function_ref<passes::Val(passes::Val, passes::Val, passes::Val)> prepare);

 private:
  passes::Val at(int64_t value) const;
  void fill(passes::Val begin, passes::Val end);

  passes::ValueBuilder& b_;
  WindowMemory& memory_;
  int operand_;
  const WindowPlan& plan_;
  std::optional<double> border_;
  LaneTile tile_;
  TileColumns columns_;
};

}  // namespace agspeed::compiler
