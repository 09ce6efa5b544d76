// SPDX-License-Identifier: Apache-2.0
// LaneTile: a small matrix of vectors on the stack of a kernel, in registers' form. Every vector holds the same pixel
// of neighbouring channels, whatever the layout of the tensor is that the tile was copied from. Position p of a tile
// with C columns is row p / C, column p % C.
#pragma once

#include <vector>

#include "passes/kernel/value_builder.h"

namespace agspeed::compiler {

struct LaneTile {
  mlir::Value memory;
  mlir::VectorType vector;
  int64_t columns = 1;
};

/// Requires: the insertion point is in the entry block of the function.
LaneTile allocateTile(passes::ValueBuilder& b, int64_t rows, int64_t columns, mlir::VectorType vector);

/// The vector at `position + offset`.
passes::Val loadVector(const LaneTile& tile, passes::Val position, int64_t offset = 0);
void storeVector(const LaneTile& tile, passes::Val position, int64_t offset, passes::Val value);
/// One lane of the vector at `position`.
passes::Val loadLane(const LaneTile& tile, passes::Val position, passes::Val lane);
void storeLane(const LaneTile& tile, passes::Val position, passes::Val lane, passes::Val value);

/// Turns one row for each lane, of `width` elements each, into `width` vectors of lanes. `width` and the number of
/// lanes are powers of two, 2 <= width <= lanes.
std::vector<passes::Val> rowsToLanes(std::vector<passes::Val> rows);
/// The reverse: one row for each lane.
std::vector<passes::Val> lanesToRows(std::vector<passes::Val> vectors);

}  // namespace agspeed::compiler
