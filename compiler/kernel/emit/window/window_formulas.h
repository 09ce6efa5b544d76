// SPDX-License-Identifier: Apache-2.0
// WindowFormulas: what each window operator computes for some neighbouring results of one row, from tiles. One function
// for each operator; emit_window.cpp has the loops around it.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "compiler/graph/cluster.h"
#include "compiler/graph/window_plan.h"
#include "compiler/kernel/emit/window/lane_tile.h"

namespace agspeed::compiler {

/// Results of one row whose columns are `phases` apart, and the taps that they read.
struct PixelBlock {
  passes::Val row;
  passes::Val column;  ///< of the first pixel
  int64_t count = 1;
  int64_t rowPhase = 0;
  int64_t columnPhase = 0;
  /// The first pixel's place in the tiles of inputs. A tap with row offset r and column offset c is r - rows.first rows
  /// and c - firstColumn columns after it (see WindowPlan).
  passes::Val position;
  passes::Val resultPosition;  ///< of the first pixel, in the tiles of results
  /// Convolutions only: the taps [first, second) of the row's phase take part.
  std::pair<passes::Val, passes::Val> tapRows;
  /// The number of the first pixel in its row and phase. nullopt: it is not fixed, and all taps are inside the source.
  std::optional<int64_t> firstGroup;
};

/// By output, then by pixel.
using PixelValues = std::vector<std::vector<passes::Val>>;

class WindowFormulas {
 public:
  /// tiles: per operand; the tiles of sources have borders around the image, which hold border(). Tiles of filters have
  /// a position for each element of the kernel.
  WindowFormulas(passes::ValueBuilder& b, const Cluster& cluster, const WindowPlan& plan,
                 const std::vector<LaneTile>& tiles)
      : b_(b), window_(*cluster.window), cluster_(cluster), plan_(plan), tiles_(tiles) {}

  /// The value of positions outside of the source: no effect on finite results. nullopt: they are not read.
  std::optional<double> border(int operand) const;
  bool isConvolution() const { return window_.op == WindowOp::kDepthwise || window_.op == WindowOp::kDepthwiseInput; }
  /// Whether PixelBlock::firstGroup has to be set, because some taps of these pixels of a row must not be read.
  bool clips(int64_t columnPhase, int64_t firstGroup, int64_t count) const;
  /// See PixelBlock::tapRows.
  std::pair<passes::Val, passes::Val> tapRows(passes::Val group, int64_t rowPhase) const;
  /// How many pixels of a row are computed together.
  int64_t pixelsPerBlock() const;
  PixelValues compute(const PixelBlock& block) const;
  /// The value that a tile holds for an element that is loaded from [row, column] of the source.
  passes::Val prepare(passes::Val loaded, passes::Val row, passes::Val column) const;
  /// Whether prepare() changes values.
  bool prepares() const { return window_.op == WindowOp::kAvgPoolBackward; }

 private:
  using Accumulate =
      llvm::function_ref<void(size_t pixel, const WindowTap& row, const WindowTap& column, int64_t offset)>;

  passes::Val at(int64_t value) const;
  void forEachTap(const PixelBlock& block, Accumulate body) const;
  passes::Val pixelColumn(const PixelBlock& block, size_t pixel) const;
  passes::Val average(passes::Val sum, passes::Val row, passes::Val column) const;
  passes::Val count(const WindowAxis& axis, passes::Val index, mlir::Type type) const;
  passes::Val firstInside(const WindowAxis& axis, passes::Val begin) const;

  PixelValues sum(const PixelBlock& block) const;
  PixelValues convolve(const PixelBlock& block) const;
  PixelValues maximum(const PixelBlock& block) const;
  PixelValues gatherMaxima(const PixelBlock& block) const;

  passes::ValueBuilder& b_;
  const Window& window_;
  const Cluster& cluster_;
  const WindowPlan& plan_;
  const std::vector<LaneTile>& tiles_;
};

}  // namespace agspeed::compiler
