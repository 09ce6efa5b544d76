// SPDX-License-Identifier: Apache-2.0
// WindowPlan: how a kernel walks over the rows and columns of a Window, other than resampling. Pure data, no MLIR.
//
// A kernel computes every result from taps: elements of another tensor, the source, at fixed distances. Gradients
// gather as well: an element of the image reads all windows that cover it. Which windows these are repeats every
// `stride` elements, so results fall into phases with one list of taps each. Result `phase + phases * group` reads the
// source at `group * step + offset`:
//   from windows (pooling):  1 phase, step = stride, offsets k * dilation - padding
//   to the image (gradient): phases = stride, step 1, offsets (phase + padding - k * dilation) / stride where that
//   divides
//
// The source's rows that some groups of rows need are copied to a tile first, with borders if taps outside of the
// source take part. A tile holds bands of groups such that it stays in the first-level cache.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "compiler/graph/window.h"

namespace agspeed::compiler {

struct WindowTap {
  int64_t index = 0;   ///< position in the kernel
  int64_t offset = 0;  ///< distance in the source
};

struct AxisPlan {
  int64_t results = 0;
  int64_t source = 0;
  int64_t step = 1;
  std::vector<std::vector<WindowTap>> taps;  ///< by phase, by rising offset; a phase may have none
  int64_t first = 0;                         ///< the smallest offset
  int64_t span = 1;                          ///< the largest offset - first + 1

  int64_t phases() const { return static_cast<int64_t>(taps.size()); }
  int64_t groups() const { return (results + phases() - 1) / phases(); }
  /// Length of the part of the source, borders included, that some groups read.
  int64_t sourceLength(int64_t numGroups) const { return (numGroups - 1) * step + span; }
  /// Whether some result reads beyond the source.
  bool hasBorders() const { return first < 0 || first + sourceLength(groups()) > source; }
  bool isInside(int64_t group, const WindowTap& tap) const;
  /// The groups [first, second) for which the tap is inside the source.
  std::pair<int64_t, int64_t> groupsInside(const WindowTap& tap) const;
};

/// From windows to the image for gradients of an image; else from the image to windows.
AxisPlan planAxis(const WindowAxis& axis, bool isImageResult);

struct WindowPlan {
  AxisPlan rows;
  AxisPlan columns;
  int64_t bandGroups = 1;     ///< groups of rows in one tile
  bool skipsPadding = false;  ///< taps outside of the source take no part
  int64_t firstColumn = 0;    ///< of the source, in a tile: negative if the tile has borders
  int64_t tileColumns = 1;

  /// Whether tiles have columns outside of the source.
  bool hasTileBorders() const { return firstColumn != 0 || tileColumns != columns.source; }
  int64_t tileRows() const { return rows.sourceLength(bandGroups); }
};

WindowPlan planWindow(const Window& window, DType dtype);

/// Whether kernels can compute the window. Errors: kUnsupported with the reason, as the end of a sentence.
Status checkWindowSize(const Window& window, DType dtype);

}  // namespace agspeed::compiler
