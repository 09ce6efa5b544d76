// SPDX-License-Identifier: Apache-2.0
#include "compiler/graph/resample_plan.h"

#include <algorithm>
#include <cmath>

namespace agspeed::compiler {
namespace {

constexpr int64_t kMostTileBytes = 256 << 10;  // they are on the stack
constexpr int64_t kLongestSide = 1 << 14;

// ATen's floorf() takes an f32, also for f64.
template <typename T>
int64_t floorOf(T position) {
  return static_cast<int64_t>(std::floor(static_cast<float>(position)));
}

// A kernel that multiplies weights first rounds once, because its compiler fuses multiplication and subtraction.
template <typename T>
T centreOf(const Window& window, const WindowAxis& axis, int64_t index) {
  const T ratio = static_cast<T>(axis.ratio);
  const T centre = static_cast<T>(index) + T(0.5);
  const bool isFused = window.order == SamplingOrder::kJoint;
  return std::max(isFused ? std::fma(ratio, centre, T(-0.5)) : ratio * centre - T(0.5), T(0));
}

template <typename T>
int64_t nearestOf(const Window& window, const WindowAxis& axis, int64_t index) {
  int64_t position = 0;
  if (window.sampling == Sampling::kNearest) {
    position = floorOf(static_cast<T>(axis.ratio) * static_cast<T>(index));
  } else if (window.order == SamplingOrder::kSeparable) {
    position = floorOf(static_cast<double>(centreOf<T>(window, axis, index)) + 0.5);
  } else {
    position = floorOf((static_cast<double>(index) + 0.5) * axis.ratio);
  }
  return std::min(position, axis.image - 1);
}

template <typename T>
std::vector<Sample> neighboursOf(const Window& window, const WindowAxis& axis, int64_t index) {
  if (axis.image == axis.windows) return {{index, 1}, {index, 0}};
  const T position = window.sampling == Sampling::kBilinearAligned ? static_cast<T>(axis.ratio) * static_cast<T>(index)
                                                                   : centreOf<T>(window, axis, index);
  const int64_t first = std::min(floorOf(position), axis.image - 1);
  const T weight = std::clamp(position - static_cast<T>(first), T(0), T(1));
  return {{first, T(1) - weight}, {std::min(first + 1, axis.image - 1), weight}};
}

template <typename T>
std::vector<Sample> samplesOf(const Window& window, const WindowAxis& axis, int64_t index) {
  if (window.isInterpolating()) return neighboursOf<T>(window, axis, index);
  return {{nearestOf<T>(window, axis, index), 1}};
}

}  // namespace

AxisSamples samplesOfWindows(const Window& window, const WindowAxis& axis, DType dtype) {
  AxisSamples samples;
  for (int64_t index = 0; index < axis.windows; ++index) {
    samples.push_back(dtype == DType::kF64 ? samplesOf<double>(window, axis, index)
                                           : samplesOf<float>(window, axis, index));
  }
  return samples;
}

AxisSamples windowsOfSamples(const AxisSamples& samples, int64_t image) {
  AxisSamples windows(static_cast<size_t>(image));
  for (size_t window = 0; window < samples.size(); ++window) {
    for (const Sample& sample : samples[window]) {
      windows[static_cast<size_t>(sample.source)].push_back({static_cast<int64_t>(window), sample.weight});
    }
  }
  return windows;
}

Status checkResampleSize(const Window& window, DType dtype) {
  for (const WindowAxis& axis : {window.rows, window.columns}) {
    if (std::max(axis.image, axis.windows) > kLongestSide) return unsupported("its images are too large");
  }
  const int64_t numVectors = kImageRows * window.columns.image + kWindowRows * window.columns.windows;
  const int64_t bytes = numVectors * windowLanes(dtype) * (dtype == DType::kF64 ? 8 : 4);
  return bytes > kMostTileBytes ? unsupported("its rows are too long") : Status();
}

}  // namespace agspeed::compiler
