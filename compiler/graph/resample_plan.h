// SPDX-License-Identifier: Apache-2.0
// Samples: which elements of an image a kernel of a resampling operator reads for each window, and with which weights.
// Pure data, no MLIR.
//
// Positions and weights are fixed at compile time, so that kernels read them from tables. They are computed in the
// arithmetic of ATen's kernels: in f64 for f64, else in f32. Positions do not fall from one window to the next. At the
// end of an axis, both positions of a window may be one element, which then has both weights.
#pragma once

#include <cstdint>
#include <vector>

#include "compiler/graph/window.h"

namespace agspeed::compiler {

struct Sample {
  int64_t source = 0;
  double weight = 1;  ///< 1 for the nearest element
};

/// By window: one sample, or two whose positions are equal or neighbours. Of gradients by element of the image: all
/// windows that read it, by rising position, or none.
using AxisSamples = std::vector<std::vector<Sample>>;

/// The samples of each window. A weight may be 0. Requires: window.isResampling().
AxisSamples samplesOfWindows(const Window& window, const WindowAxis& axis, DType dtype);
/// The windows that read each element of the image.
AxisSamples windowsOfSamples(const AxisSamples& samples, int64_t image);

/// Kernels hold two rows of the image and one row of windows in tiles.
constexpr int64_t kImageRows = 2;
constexpr int64_t kWindowRows = 1;

/// Whether kernels can compute the window. Errors: kUnsupported with the reason, as the end of a sentence.
Status checkResampleSize(const Window& window, DType dtype);

}  // namespace agspeed::compiler
