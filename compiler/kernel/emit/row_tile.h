// SPDX-License-Identifier: Apache-2.0
// RowTile: rows of a transposed operand as contiguous rows on the stack. In the operand's memory, neighbouring elements
// belong to neighbouring rows:
//
//   memory, 3 rows of 4 columns    a0 b0 c0 . a1 b1 c1 . a2 b2 c2 . a3 b3 c3 .
//   tile                           a0 a1 a2 a3 . b0 b1 b2 b3 . c0 c1 c2 c3 .
//
// A tile has one row for each lane of a vector. Square blocks of all rows are transposed in registers. All other
// elements are copied one by one: the last columns, and tiles with fewer rows.
#pragma once

#include "passes/kernel/value_builder.h"

namespace agspeed::compiler {

struct RowTile {
  mlir::Value memory;
  passes::Val pitch;  ///< elements from row to row
  mlir::Type element;
  int lanes = 16;
};

/// The part of an operand that a tile holds.
struct TransposedRows {
  mlir::Value first;         ///< address of the first row's first element
  passes::Val columnStride;  ///< in elements
  passes::Val numRows;       ///< at most the number of lanes
  passes::Val numColumns;
};

/// Emits an allocation at the insertion point, which must be outside of loops.
RowTile allocateRowTile(passes::ValueBuilder& b, mlir::Type element, int lanes, passes::Val numColumns);
/// Address of a row of the tile.
mlir::Value rowOf(const RowTile& tile, passes::Val row);
/// Copies the operand's rows to the tile.
void packRows(const RowTile& tile, const TransposedRows& source);
/// Copies rows of the tile to the operand.
void unpackRows(const RowTile& tile, const TransposedRows& target);

}  // namespace agspeed::compiler
