// SPDX-License-Identifier: Apache-2.0
// DeviceOperands: the values in a kernel's parameter (see parameterBlock()), addresses of its operands, and the loads
// and stores of one thread: a chunk of neighbouring columns, or one row value.
//
// A full chunk at an aligned address is accessed at once, with up to 128 bits; other chunks are accessed column by
// column. Columns beyond the chunk's end are loaded from its last column and never stored.
#pragma once

#include <vector>

#include "compiler/graph/cluster.h"
#include "passes/kernel/value_builder.h"

namespace agspeed::backends::nvptx {

/// Neighbouring columns of a thread. Requires: first < end, or end > 0 and no store.
struct ColumnChunk {
  passes::Val first;     ///< i64
  passes::Val end;       ///< i64: columns of the row
  passes::Val isActive;  ///< i1: whether the thread may store
  int lanes = 4;
};

/// A vector of i1: which lanes are before the chunk's end.
passes::Val lanesInside(const ColumnChunk& chunk);

class DeviceOperands {
 public:
  /// Emits the loads of all values in the parameter at the insertion point.
  DeviceOperands(passes::ValueBuilder& builder, const compiler::Cluster& cluster, mlir::Value parameter);

  passes::Val outerSize(int dimension) const { return outerSizes_[dimension]; }
  passes::Val numColumns() const { return numColumns_; }
  /// Requires: the cluster sums rows.
  passes::Val blockRows() const { return blockRows_; }
  passes::Val begin() const { return begin_; }
  passes::Val end() const { return end_; }

  void enterBlock(passes::Val block);
  /// Later accesses to operands other than block operands are in this row.
  void enterRow(const std::vector<passes::Val>& coordinates);

  /// A vector of `lanes` register values.
  passes::Val load(int operand, const ColumnChunk& chunk);
  void store(int operand, const ColumnChunk& chunk, passes::Val value);
  passes::Val loadRow(int operand);
  void storeRow(int operand, passes::Val value);

 private:
  passes::Val integerAt(mlir::Value parameter, int index);
  mlir::Type elementOf(int operand) const;
  unsigned widthOf(int operand) const;
  mlir::Value address(int operand, passes::Val column);
  passes::Val mayMoveWhole(int operand, const ColumnChunk& chunk, mlir::Value first);
  mlir::Value loadLanes(int operand, const ColumnChunk& chunk);
  void storeLanes(int operand, const ColumnChunk& chunk, mlir::Value stored);
  void offsetRow(int operand, passes::Val offset);

  passes::ValueBuilder& b_;
  const compiler::Cluster& cluster_;
  std::vector<passes::Val> outerSizes_;
  passes::Val numColumns_;
  passes::Val blockRows_;
  passes::Val begin_;
  passes::Val end_;
  std::vector<mlir::Value> bases_;                      ///< per operand: a pointer to global memory
  std::vector<mlir::Value> rows_;                       ///< per operand: the current row
  std::vector<std::vector<passes::Val>> outerStrides_;  ///< per operand
  std::vector<passes::Val> columnStrides_;              ///< per operand; null unless strided
};

}  // namespace agspeed::backends::nvptx
