// SPDX-License-Identifier: Apache-2.0
// Window: an operator whose results come from windows of an image, such as pooling, a depthwise convolution,
// resampling, and their gradients. Each channel is computed for itself. A Cluster with a Window has operands, but no
// nodes and no stores: the operator is the whole kernel. Pure data; no MLIR here.
//
// Along each axis, window w of an image reads the positions w * stride - padding + k * dilation, for k < kernel.
// Positions outside of the image have no element. A window of a resampling operator reads the one or two positions that
// Sampling names. Every tensor has the dimensions [batch, rows, columns, channels] here:
//   image    [batch, image rows, image columns, channels]      the input of pooling and of resampling
//   windows  [batch, window rows, window columns, channels]    one element for each window: the result of both
//   filter   [1, kernel rows, kernel columns, channels]        the weights of a convolution
//   channel  [1, 1, 1, channels]                               a bias
//
// Such a cluster has rank 3. Integer table of a launch, as in cluster.h: batch, image rows, image columns, channels;
// then the four strides of each operand, in elements. Sizes of the two axes are fixed at compile time; batch, channels
// and strides are not. Channels are the columns of cluster.h: an operand is contiguous if their stride is 1, else
// strided. Extent: blocks of windowLanes() channels times images, or blocks of channels alone if the operator sums over
// images. The sums of one block run in a fixed order, so results do not depend on slices.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "runtime/base/dtype.h"
#include "runtime/base/status.h"

namespace agspeed::compiler {

class TextReader;

enum class WindowOp : uint8_t {
  kAvgPool,
  kAvgPoolBackward,
  kDepthwise,        ///< a convolution with one filter for each channel
  kDepthwiseInput,   ///< the gradient of its input
  kDepthwiseWeight,  ///< the gradients of its filters and of its bias
  kMaxPool,          ///< positions are row * image columns + column, as ATen's indices
  kMaxPoolBackward,
  kResample,  ///< an image of another size; resample_plan.h has its positions and weights
  kResampleBackward,
};

/// The meaning of an operand's rows and columns; see above.
enum class WindowSide : uint8_t { kImage, kWindows, kFilter, kChannel };

struct WindowOperandInfo {
  WindowSide side;
  bool isOutput = false;
  bool isPosition = false;  ///< i64 positions in the image; other operands share one float dtype
};

struct WindowOpInfo {
  WindowOp op;
  std::string_view name;  ///< "max_pool", ...
  std::span<const WindowOperandInfo> operands;
  int32_t optional = -1;       ///< index of an operand that may be missing: a bias
  bool sumsOverBatch = false;  ///< the extent counts blocks of channels alone
};

const WindowOpInfo& infoOf(WindowOp op);

struct WindowAxis {
  int64_t image = 1;
  int64_t windows = 1;
  int64_t kernel = 1;
  int64_t stride = 1;
  int64_t padding = 0;
  int64_t dilation = 1;
  double ratio = 1;  ///< resampling only: the distance of neighbouring windows in the image
};

/// By what an average divides the sum of a window.
enum class WindowDivisor : uint8_t {
  kConstant,  ///< Window::divisor
  kInside,    ///< the number of its positions inside the image
  kPadded,    ///< the number of its positions inside the image or its padding
  kSides,     ///< its rows, then its columns
};

/// Where a window of a resampling operator reads the image, along each axis.
enum class Sampling : uint8_t {
  kNearest,          ///< the element at floor(window * ratio)
  kNearestExact,     ///< the element at floor((window + 0.5) * ratio)
  kBilinear,         ///< the elements on both sides of (window + 0.5) * ratio - 0.5
  kBilinearAligned,  ///< the elements on both sides of window * ratio
};

/// In which order a resampling operator rounds. ATen has a kernel for each, and chooses by sizes and layout.
enum class SamplingOrder : uint8_t {
  kJoint,      ///< each element has one weight, the product of the weights of row and column
  kSeparable,  ///< columns are interpolated first, then rows
};

struct Window {
  WindowOp op = WindowOp::kMaxPool;
  WindowAxis rows;
  WindowAxis columns;
  WindowDivisor dividesBy = WindowDivisor::kInside;  ///< averages only
  int64_t divisor = 1;
  Sampling sampling = Sampling::kNearest;  ///< resampling only
  SamplingOrder order = SamplingOrder::kJoint;
  /// Convolutions and gradients of filters only: whether the zeros of the padding are multiplied, too, so that infinite
  /// and NaN factors make NaN there.
  bool multipliesPadding = false;

  bool isResampling() const { return op == WindowOp::kResample || op == WindowOp::kResampleBackward; }
  /// Whether a window of a resampling operator reads two positions of each axis.
  bool isInterpolating() const;
  /// One line: "window max_pool rows 8 4 3 2 1 1 columns 8 4 3 2 1 1 divisor inside 1", and
  /// "multiplies_padding" if it does. Each axis has the first six numbers of WindowAxis. Resampling has three for each
  /// axis, image, windows and ratio: "window resample rows 8 16 0.5 columns 8 16 0.5 sampling bilinear joint".
  /// parseWindow() reads it back.
  std::string toString() const;
};

/// Reads a window after its first word. Errors: kInvalidArgument with the place.
StatusOr<Window> parseWindow(TextReader& in);

/// The channels that one step of a kernel computes, by the dtype of the elements.
int64_t windowLanes(DType dtype);
/// How many positions of window `index` an average counts along one axis.
int64_t countPositions(const WindowAxis& axis, WindowDivisor dividesBy, int64_t index);

struct Cluster;

/// The row of the operand in infoOf(), which may have one operand more. Requires: cluster.window.
const WindowOperandInfo& operandInfo(const Cluster& cluster, size_t operand);
/// Errors: kInvalidArgument with the broken rule (operands, dtypes, sizes). Requires: cluster.window.
Status verifyWindow(const Cluster& cluster);

}  // namespace agspeed::compiler
