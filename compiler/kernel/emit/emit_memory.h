// SPDX-License-Identifier: Apache-2.0
// OperandAccess: addresses of a kernel's operands, and loads and stores of one vector of columns or one row value.
// Column strides select the instruction at compile time: contiguous = vector load, strided = gather. Rows of transposed
// operands are copied to tiles (row_tile.h), where they are contiguous.
#pragma once

#include <vector>

#include "compiler/graph/cluster.h"
#include "compiler/kernel/emit/row_tile.h"
#include "passes/kernel/value_builder.h"

namespace agspeed::compiler {

/// A vector of consecutive columns. mask is null for a full vector.
struct ColumnVector {
  passes::Val first;  ///< i64, index of the first column
  passes::Val mask;
  int lanes = 16;
};

class OperandAccess {
 public:
  /// Emits the loads of the operand pointers and of the integer table (see cluster.h) at the insertion point.
  OperandAccess(passes::ValueBuilder& builder, const Cluster& cluster, int lanes, mlir::Value pointers,
                mlir::Value integers);

  passes::Val outerSize(int dimension) const { return outerSizes_[dimension]; }
  passes::Val numColumns() const { return numColumns_; }
  /// Rows per block. Requires: the cluster sums rows.
  passes::Val blockRows() const { return blockRows_; }
  /// Computes the addresses of block operands; later accesses to these are in that block.
  void enterBlock(passes::Val block);
  /// Computes the addresses of the other operands in the row with these outer coordinates; later accesses are in that
  /// row.
  void enterRow(const std::vector<passes::Val>& coordinates);

  /// Whether rows must be entered tile by tile.
  bool hasTiles() const { return !transposed_.empty(); }
  /// Enters a tile of numRows rows, at most one for each lane. The rows begin at these outer coordinates and follow one
  /// another in the last outer dimension. Copies the rows of transposed inputs to their tiles.
  void enterTile(const std::vector<passes::Val>& coordinates, passes::Val numRows);
  /// As enterRow(), for a row of the tile.
  void enterRowOfTile(passes::Val row);
  /// Copies the rows of transposed outputs to memory.
  void leaveTile();

  /// A vector of the operand's columns in register form. Masked-off lanes are zero.
  passes::Val load(int operand, const ColumnVector& columns);
  void store(int operand, const ColumnVector& columns, passes::Val value);
  passes::Val loadRow(int operand);
  void storeRow(int operand, passes::Val value);

 private:
  struct Transposed {
    int operand = 0;
    passes::Val columnStride;
    RowTile tile;
    mlir::Value memory;  ///< address of the first row
  };

  passes::Val integerAt(mlir::Value integers, int index);
  mlir::Value address(int operand, mlir::Value index);
  mlir::Value laneAddresses(int operand, const ColumnVector& columns);
  mlir::Value addressOf(int operand, const std::vector<passes::Val>& coordinates);
  mlir::Type elementOf(int operand) const;
  unsigned alignmentOf(int operand) const;

  passes::ValueBuilder& b_;
  const Cluster& cluster_;
  std::vector<passes::Val> outerSizes_;
  passes::Val numColumns_;
  passes::Val blockRows_;
  std::vector<mlir::Value> bases_;                      ///< per operand: its pointer
  std::vector<mlir::Value> rows_;                       ///< per operand: address of the current row
  std::vector<std::vector<passes::Val>> outerStrides_;  ///< per operand
  std::vector<passes::Val> columnStrides_;              ///< per operand; null unless strided
  std::vector<Transposed> transposed_;
  std::vector<passes::Val> tileCoordinates_;  ///< of the tile's first row
  passes::Val tileRows_;
};

}  // namespace agspeed::compiler
