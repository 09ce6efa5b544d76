// SPDX-License-Identifier: Apache-2.0
// WindowMemory: copies rows of a window kernel's operands to tiles and back. It hides layouts and dtypes: tiles hold
// vectors of neighbouring channels in f32, or f64 for f64, or i32 for positions.
//
// Rows whose channels are contiguous are copied vector by vector. Of other rows with contiguous columns (NCHW), a block
// of columns of all lanes is transposed in registers. All others are copied element by element.
#pragma once

#include <vector>

#include "compiler/graph/cluster.h"
#include "compiler/kernel/emit/window/lane_tile.h"

namespace agspeed::compiler {

/// Consecutive rows of an operand.
struct RowRange {
  passes::Val begin;
  passes::Val count;
  int64_t most = 1;  ///< `count` is never larger
};

/// Consecutive columns of an operand, and where the first one is in a tile.
struct TileColumns {
  int64_t begin = 0;
  int64_t count = 0;
  int64_t tileBegin = 0;
};

class WindowMemory {
 public:
  /// Rows with fewer columns, whose channels are not contiguous, are copied element by element, unless several of them
  /// are copied together.
  static constexpr int64_t kFewestColumns = 4;

  /// Emits the loads of the pointers and of the integer table (see window.h) at the insertion point.
  WindowMemory(passes::ValueBuilder& b, const Cluster& cluster, mlir::Value pointers, mlir::Value integers);

  passes::Val numImages() const { return numImages_; }
  int64_t lanes() const { return lanes_; }
  /// The vectors of tiles of this operand.
  mlir::VectorType vectorOf(int operand) const;

  /// Emits a loop over the units [begin, end) of a launch, which enters the image and the block of channels of each.
  /// Units are ordered so that consecutive ones share memory: the filters of a block of channels, or an image whose
  /// pixels hold all blocks (`isChannelsLast`). body(unit, inner): `inner` counts the units that share.
  void forEachUnit(passes::Val begin, passes::Val end, bool isChannelsLast,
                   llvm::function_ref<void(passes::Val unit, passes::Val inner)> body);
  /// Later copies are of this image and of the block of channels that begins at `channel`.
  void enter(passes::Val image, passes::Val channel);
  /// Copies rows of the operand to rows of the tile, the first one to `tileRow`.
  void pack(int operand, const RowRange& rows, const LaneTile& tile, passes::Val tileRow, const TileColumns& columns);
  void pack(int operand, passes::Val row, const LaneTile& tile, passes::Val tileRow, const TileColumns& columns);
  /// Copies the first columns of the tile's first rows to rows of the operand.
  void unpack(int operand, const RowRange& rows, const LaneTile& tile, int64_t numColumns);
  void unpack(int operand, passes::Val row, const LaneTile& tile, passes::Val tileRow, int64_t numColumns);

 private:
  // Columns of an operand at equal distances, and the part of a tile that belongs to them: a row, or several ones that
  // follow each other in both.
  struct Row {
    int operand;
    mlir::Value memory;  // of its first column and lane
    const LaneTile& tile;
    passes::Val position;  // of this column in the tile
    passes::Val numColumns;
    int64_t blockWidth;
  };

  passes::Val at(int64_t value) const;
  mlir::Value element(const Row& row, passes::Val offset) const;
  passes::Val toTile(int operand, mlir::Value loaded) const;
  mlir::Value fromTile(int operand, passes::Val value) const;
  mlir::Type memoryTypeOf(int operand) const;
  unsigned alignmentOf(int operand) const;
  void forEachRun(int operand, const RowRange& rows, const LaneTile& tile, passes::Val tileRow,
                  const TileColumns& columns, llvm::function_ref<void(const Row&)> body);
  passes::Val hasBlocks(const Row& row) const;
  void packRow(const Row& row);
  void unpackRow(const Row& row);
  void forEachVector(const Row& row, llvm::function_ref<void(passes::Val position, mlir::Value memory)> body);
  passes::Val laneOffset(int operand, passes::Val lane, bool isFull) const;
  void forEachElement(const Row& row, passes::Val numLanes,
                      llvm::function_ref<void(passes::Val position, passes::Val lane, mlir::Value)> body);
  void forEachBlock(const Row& row, llvm::function_ref<void(passes::Val column)> body);
  void packBlock(const Row& row, passes::Val column, bool isFull);
  void unpackBlock(const Row& row, passes::Val column, bool isFull);

  passes::ValueBuilder& b_;
  const Cluster& cluster_;
  int64_t lanes_;
  passes::Val numImages_;
  passes::Val numChannels_;
  std::vector<mlir::Value> pointers_;              ///< per operand
  std::vector<std::vector<passes::Val>> strides_;  ///< per operand: image, row, column, channel
  std::vector<mlir::Value> bases_;                 ///< per operand: of the current image and block
  passes::Val isFull_;                             ///< whether the block has a channel for each lane
  passes::Val numLanes_;
  passes::Val mask_;
};

}  // namespace agspeed::compiler
