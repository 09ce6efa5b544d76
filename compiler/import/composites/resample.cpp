// SPDX-License-Identifier: Apache-2.0
// Builders of operators that resample images ([N, C, H, W] in any layout): nearest and bilinear, with their gradients.
// Each becomes one kernel of its own (compiler/graph/window.h). Positions and weights follow ATen's CPU kernels, of
// which there are two for each operator.
#include <array>
#include <optional>

#include "compiler/graph/tensor_type.h"
#include "compiler/import/composites/window_launch.h"
#include "compiler/import/op_table.h"

namespace agspeed::compiler {
namespace {

// ATen's limit on rows plus columns of a result that it computes pixel by pixel, whatever the layout.
constexpr int64_t kFewRowsAndColumns = 128;

// ATen's condition for the kernel that computes pixel by pixel. Its other one computes channel by channel.
bool isPixelByPixel(OpImport& op, const TensorType& image, const Window& window) {
  const bool hasChannels = estimate(image.sizes[1], op.emitter().graph().hints) > 3;
  return (hasChannels && isChannelsLast(image)) || window.rows.windows + window.columns.windows <= kFewRowsAndColumns;
}

// A scale that the caller gave, or none.
StatusOr<std::optional<double>> scaleOf(const OpImport& op, const char* parameter) {
  if (op.isNone(parameter)) return std::optional<double>();
  AG_ASSIGN_OR_RETURN(const double scale, op.number(parameter));
  return scale > 0 ? std::optional(scale) : std::nullopt;
}

template <typename T>
double ratioOf(const Window& window, const WindowAxis& axis, std::optional<double> scale) {
  if (window.sampling == Sampling::kBilinearAligned) {
    return axis.windows > 1 ? static_cast<T>(axis.image - 1) / static_cast<T>(axis.windows - 1) : T(0);
  }
  return scale ? static_cast<T>(1 / *scale) : static_cast<T>(axis.image) / static_cast<T>(axis.windows);
}

// ATen computes positions of nearest elements in f32 if it computes pixel by pixel, also for f64. It ignores the scale
// if the image keeps its size or doubles it.
double nearestRatioOf(const Window& window, const WindowAxis& axis, std::optional<double> scale, DType dtype) {
  const bool isSimple = window.sampling == Sampling::kNearest && window.order == SamplingOrder::kJoint;
  if (isSimple && axis.windows == axis.image) return 1;
  if (isSimple && axis.windows == 2 * axis.image) return 0.5;
  const bool isDouble = dtype == DType::kF64 && window.order == SamplingOrder::kSeparable;
  return isDouble ? ratioOf<double>(window, axis, scale) : ratioOf<float>(window, axis, scale);
}

Status setRatios(const OpImport& op, Window& window, DType dtype) {
  const std::array axes{&window.rows, &window.columns};
  const std::array parameters{"scales_h", "scales_w"};
  for (size_t i = 0; i < axes.size(); ++i) {
    AG_ASSIGN_OR_RETURN(const std::optional<double> scale, scaleOf(op, parameters[i]));
    if (!window.isInterpolating()) {
      axes[i]->ratio = nearestRatioOf(window, *axes[i], scale, dtype);
    } else {
      axes[i]->ratio =
          dtype == DType::kF64 ? ratioOf<double>(window, *axes[i], scale) : ratioOf<float>(window, *axes[i], scale);
    }
  }
  return {};
}

Status resample(OpImport& op, Sampling sampling) {
  if (!op.isTensor("x")) return unsupported("argument \"x\" is not a tensor");
  WindowLaunch launch(op, WindowOp::kResample);
  const TensorType image = op.typeOf("x");
  AG_ASSIGN_OR_RETURN(const TensorType windows, op.resultType());
  if (image.rank() != 4) return unsupported("the image is not [N, C, H, W]");
  AG_RETURN_IF_ERROR(launch.setSizes(image, windows));
  Window& window = launch.window();
  window.sampling = sampling;
  window.order = isPixelByPixel(op, image, window) ? SamplingOrder::kJoint : SamplingOrder::kSeparable;
  AG_RETURN_IF_ERROR(setRatios(op, window, image.dtype));
  AG_RETURN_IF_ERROR(launch.addInput("x"));
  AG_RETURN_IF_ERROR(launch.addResult(0));
  return launch.finish();
}

// Both of ATen's kernels multiply the weights of rows and columns first.
Status resampleBackward(OpImport& op, Sampling sampling) {
  if (!op.isTensor("grad")) return unsupported("argument \"grad\" is not a tensor");
  WindowLaunch launch(op, WindowOp::kResampleBackward);
  AG_ASSIGN_OR_RETURN(const TensorType image, op.resultType());
  AG_RETURN_IF_ERROR(launch.setSizes(image, op.typeOf("grad")));
  launch.window().sampling = sampling;
  AG_RETURN_IF_ERROR(setRatios(op, launch.window(), image.dtype));
  AG_RETURN_IF_ERROR(launch.addInput("grad"));
  AG_RETURN_IF_ERROR(launch.addResult(0));
  return launch.finish();
}

Sampling bilinear(const OpImport& op) {
  return op.flag("align_corners") ? Sampling::kBilinearAligned : Sampling::kBilinear;
}

}  // namespace

Status buildNearest(OpImport& op) { return resample(op, Sampling::kNearest); }
Status buildNearestBackward(OpImport& op) { return resampleBackward(op, Sampling::kNearest); }
Status buildNearestExact(OpImport& op) { return resample(op, Sampling::kNearestExact); }
Status buildNearestExactBackward(OpImport& op) { return resampleBackward(op, Sampling::kNearestExact); }
Status buildBilinear(OpImport& op) { return resample(op, bilinear(op)); }
Status buildBilinearBackward(OpImport& op) { return resampleBackward(op, bilinear(op)); }

}  // namespace agspeed::compiler
