// SPDX-License-Identifier: Apache-2.0
// Builders of operators on windows of images: pooling and depthwise convolutions, with their gradients; resample.cpp
// has the builders of resampling. Each becomes one kernel of its own (compiler/graph/window.h), which does not fuse
// with its neighbours. [C, H, W] and [N, C, H, W] in any layout. Images, unlike batch and channels, must have fixed
// sizes.
#include <array>
#include <initializer_list>
#include <optional>

#include "compiler/import/composites/depthwise.h"
#include "compiler/import/composites/window_launch.h"
#include "compiler/import/op_table.h"

namespace agspeed::compiler {
namespace {

// The two numbers of a parameter such as padding. One number stands for both.
StatusOr<std::array<int64_t, 2>> pairOf(const OpImport& op, const char* parameter) {
  AG_ASSIGN_OR_RETURN(const std::vector<int64_t> numbers, op.integers(parameter));
  if (numbers.size() != 1 && numbers.size() != 2) {
    return unsupported("argument \"{}\" has {} numbers", parameter, numbers.size());
  }
  return std::array{numbers.front(), numbers.back()};
}

// --- pooling ---

// Reads kernel_size, stride (default: kernel_size) and padding.
Status setPoolAxes(OpImport& op, WindowLaunch& launch) {
  AG_ASSIGN_OR_RETURN(const auto kernel, pairOf(op, "kernel_size"));
  AG_ASSIGN_OR_RETURN(const auto padding, pairOf(op, "padding"));
  auto stride = kernel;
  AG_ASSIGN_OR_RETURN(const std::vector<int64_t> strides, op.integers("stride"));
  if (!strides.empty()) stride = {strides.front(), strides.back()};
  launch.setAxes(&WindowAxis::kernel, kernel);
  launch.setAxes(&WindowAxis::stride, stride);
  launch.setAxes(&WindowAxis::padding, padding);
  return {};
}

Status buildMaximum(OpImport& op, WindowLaunch& launch, const TensorType& image, const TensorType& windows) {
  AG_RETURN_IF_ERROR(launch.setSizes(image, windows));
  AG_RETURN_IF_ERROR(setPoolAxes(op, launch));
  AG_ASSIGN_OR_RETURN(const auto dilation, pairOf(op, "dilation"));
  launch.setAxes(&WindowAxis::dilation, dilation);
  return {};
}

Status requireTensors(const OpImport& op, std::initializer_list<const char*> parameters) {
  for (const char* parameter : parameters) {
    if (!op.isTensor(parameter)) return unsupported("argument \"{}\" is not a tensor", parameter);
  }
  return {};
}

Status setAverage(OpImport& op, WindowLaunch& launch) {
  AG_RETURN_IF_ERROR(setPoolAxes(op, launch));
  launch.window().dividesBy = op.flag("count_include_pad") ? WindowDivisor::kPadded : WindowDivisor::kInside;
  if (op.isNone("divisor_override")) return {};
  launch.window().dividesBy = WindowDivisor::kConstant;
  AG_ASSIGN_OR_RETURN(launch.window().divisor, op.integer("divisor_override"));
  return {};
}

// The windows of adaptive pooling are equal and do not overlap if their number divides the size of the image.
Status setAdaptive(WindowLaunch& launch) {
  for (WindowAxis* axis : {&launch.window().rows, &launch.window().columns}) {
    if (axis->image % axis->windows != 0) return unsupported("its windows have different sizes");
    axis->kernel = axis->stride = axis->image / axis->windows;
  }
  launch.window().dividesBy = WindowDivisor::kSides;
  return {};
}

// --- depthwise convolutions ---

struct ConvolvedImage {
  ValueId value;
  std::array<int64_t, 2> padding;
  bool multipliesPadding = false;
};

StatusOr<ConvolvedImage> imageOf(OpImport& op) {
  AG_ASSIGN_OR_RETURN(const auto padding, pairOf(op, "padding"));
  return ConvolvedImage{op.tensor("x"), padding};
}

// The image inside the zeros, if another operator pads the image for this convolution alone. Then the convolution pads,
// and that operator is not needed.
StatusOr<ConvolvedImage> innerImageOf(OpImport& op) {
  AG_ASSIGN_OR_RETURN(const ConvolvedImage image, imageOf(op));
  const auto padded = op.padded("x");
  if (image.padding != std::array<int64_t, 2>{0, 0} || !padded || padded->sides.size() != 4) return image;
  return ConvolvedImage{padded->inner, {padded->sides[2], padded->sides[0]}, /*multipliesPadding=*/true};
}

// Reads the arguments of a convolution whose every channel has one filter.
Status setConvolution(OpImport& op, WindowLaunch& launch, const ConvolvedImage& source, const TensorType& windows) {
  const TensorType image = op.emitter().typeOf(source.value);
  const TensorType weight = op.typeOf("weight");
  AG_ASSIGN_OR_RETURN(const int64_t groups, op.integer("groups"));
  if (groups == 1 || image.rank() != 4 || weight.rank() != 4 || op.flag("transposed")) {
    return unsupported("it is neither depthwise nor 1x1 with stride 1 and without padding");
  }
  AG_RETURN_IF_ERROR(launch.setSizes(image, windows));
  const bool isDepthwise = sameValue(image.sizes[1], groups) && sameValue(weight.sizes[0], groups);
  if (!isDepthwise || !isOne(weight.sizes[1])) return unsupported("it has several channels in a group");
  if (!weight.sizes[2].isConstant() || !weight.sizes[3].isConstant())
    return unsupported("the filter's size is not fixed");
  launch.setAxes(&WindowAxis::kernel, {weight.sizes[2].constant(), weight.sizes[3].constant()});
  AG_ASSIGN_OR_RETURN(const auto stride, pairOf(op, "stride"));
  AG_ASSIGN_OR_RETURN(const auto dilation, pairOf(op, "dilation"));
  launch.setAxes(&WindowAxis::stride, stride);
  launch.setAxes(&WindowAxis::padding, source.padding);
  launch.setAxes(&WindowAxis::dilation, dilation);
  launch.window().multipliesPadding = source.multipliesPadding;
  return {};
}

StatusOr<WindowLaunch> inputGradient(OpImport& op) {
  WindowLaunch launch(op, WindowOp::kDepthwiseInput);
  AG_ASSIGN_OR_RETURN(const ConvolvedImage image, imageOf(op));
  AG_RETURN_IF_ERROR(setConvolution(op, launch, image, op.typeOf("grad")));
  AG_RETURN_IF_ERROR(launch.addInput("grad"));
  AG_RETURN_IF_ERROR(launch.addInput("weight"));
  AG_RETURN_IF_ERROR(launch.addResult(0));
  AG_RETURN_IF_ERROR(launch.check());
  return launch;
}

StatusOr<WindowLaunch> weightGradient(OpImport& op) {
  WindowLaunch launch(op, WindowOp::kDepthwiseWeight);
  AG_ASSIGN_OR_RETURN(const ConvolvedImage image, innerImageOf(op));
  AG_RETURN_IF_ERROR(setConvolution(op, launch, image, op.typeOf("grad")));
  AG_RETURN_IF_ERROR(launch.addInput("grad"));
  AG_RETURN_IF_ERROR(launch.addInput(image.value));
  AG_RETURN_IF_ERROR(launch.addResult(1));
  if (op.isResultWanted(2)) AG_RETURN_IF_ERROR(launch.addResult(2));
  AG_RETURN_IF_ERROR(launch.check());
  return launch;
}

}  // namespace

Status buildMaxPool(OpImport& op) {
  AG_RETURN_IF_ERROR(requireTensors(op, {"x"}));
  WindowLaunch launch(op, WindowOp::kMaxPool);
  AG_ASSIGN_OR_RETURN(const TensorType windows, op.resultType(0));
  AG_RETURN_IF_ERROR(buildMaximum(op, launch, op.typeOf("x"), windows));
  AG_RETURN_IF_ERROR(launch.addInput("x"));
  AG_RETURN_IF_ERROR(launch.addResult(0));
  AG_RETURN_IF_ERROR(launch.addResult(1));
  return launch.finish();
}

Status buildMaxPoolBackward(OpImport& op) {
  AG_RETURN_IF_ERROR(requireTensors(op, {"grad", "x", "indices"}));
  WindowLaunch launch(op, WindowOp::kMaxPoolBackward);
  AG_RETURN_IF_ERROR(buildMaximum(op, launch, op.typeOf("x"), op.typeOf("grad")));
  AG_RETURN_IF_ERROR(launch.addInput("grad"));
  AG_RETURN_IF_ERROR(launch.addInput("indices"));
  AG_RETURN_IF_ERROR(launch.addResult(0));
  return launch.finish();
}

Status buildAvgPool(OpImport& op) {
  AG_RETURN_IF_ERROR(requireTensors(op, {"x"}));
  WindowLaunch launch(op, WindowOp::kAvgPool);
  AG_ASSIGN_OR_RETURN(const TensorType windows, op.resultType());
  AG_RETURN_IF_ERROR(launch.setSizes(op.typeOf("x"), windows));
  AG_RETURN_IF_ERROR(setAverage(op, launch));
  AG_RETURN_IF_ERROR(launch.addInput("x"));
  AG_RETURN_IF_ERROR(launch.addResult(0));
  return launch.finish();
}

Status buildAvgPoolBackward(OpImport& op) {
  AG_RETURN_IF_ERROR(requireTensors(op, {"grad", "x"}));
  WindowLaunch launch(op, WindowOp::kAvgPoolBackward);
  AG_RETURN_IF_ERROR(launch.setSizes(op.typeOf("x"), op.typeOf("grad")));
  AG_RETURN_IF_ERROR(setAverage(op, launch));
  AG_RETURN_IF_ERROR(launch.addInput("grad"));
  AG_RETURN_IF_ERROR(launch.addResult(0));
  return launch.finish();
}

Status buildAdaptiveAvgPool(OpImport& op) {
  AG_RETURN_IF_ERROR(requireTensors(op, {"x"}));
  WindowLaunch launch(op, WindowOp::kAvgPool);
  AG_ASSIGN_OR_RETURN(const TensorType windows, op.resultType());
  AG_RETURN_IF_ERROR(launch.setSizes(op.typeOf("x"), windows));
  AG_RETURN_IF_ERROR(setAdaptive(launch));
  AG_RETURN_IF_ERROR(launch.addInput("x"));
  AG_RETURN_IF_ERROR(launch.addResult(0));
  return launch.finish();
}

Status buildAdaptiveAvgPoolBackward(OpImport& op) {
  AG_RETURN_IF_ERROR(requireTensors(op, {"grad", "x"}));
  WindowLaunch launch(op, WindowOp::kAvgPoolBackward);
  AG_RETURN_IF_ERROR(launch.setSizes(op.typeOf("x"), op.typeOf("grad")));
  AG_RETURN_IF_ERROR(setAdaptive(launch));
  AG_RETURN_IF_ERROR(launch.addInput("grad"));
  AG_RETURN_IF_ERROR(launch.addResult(0));
  return launch.finish();
}

Status buildDepthwise(OpImport& op) {
  AG_RETURN_IF_ERROR(requireTensors(op, {"x", "weight"}));
  WindowLaunch launch(op, WindowOp::kDepthwise);
  AG_ASSIGN_OR_RETURN(const TensorType windows, op.resultType());
  AG_ASSIGN_OR_RETURN(const ConvolvedImage image, innerImageOf(op));
  AG_RETURN_IF_ERROR(setConvolution(op, launch, image, windows));
  AG_RETURN_IF_ERROR(launch.addInput(image.value));
  AG_RETURN_IF_ERROR(launch.addInput("weight"));
  if (op.isTensor("bias")) AG_RETURN_IF_ERROR(launch.addInput("bias"));
  AG_RETURN_IF_ERROR(launch.addResult(0));
  return launch.finish();
}

// The gradients are one kernel for the input, and one for filters and bias.
Status buildDepthwiseBackward(OpImport& op) {
  AG_RETURN_IF_ERROR(requireTensors(op, {"grad", "x", "weight"}));
  if (op.isResultWanted(2) && !op.isResultWanted(1)) return unsupported("only the bias has a gradient");
  std::optional<WindowLaunch> input, weight;
  if (op.isResultWanted(0)) {
    AG_ASSIGN_OR_RETURN(input, inputGradient(op));
  }
  if (op.isResultWanted(1)) {
    AG_ASSIGN_OR_RETURN(weight, weightGradient(op));
  }
  if (input) input->emit();
  if (weight) weight->emit();
  return {};
}

}  // namespace agspeed::compiler
