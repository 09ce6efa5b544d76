// SPDX-License-Identifier: Apache-2.0
#include "compiler/graph/window.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "compiler/graph/cluster.h"
#include "compiler/graph/text_reader.h"
#include "runtime/base/format.h"

namespace agspeed::compiler {
namespace {

constexpr bool kOut = true;
constexpr bool kPositions = true;

constexpr WindowOperandInfo kAvgPoolOperands[] = {{WindowSide::kImage}, {WindowSide::kWindows, kOut}};
constexpr WindowOperandInfo kAvgPoolBackwardOperands[] = {{WindowSide::kWindows}, {WindowSide::kImage, kOut}};
constexpr WindowOperandInfo kDepthwiseOperands[] = {
    {WindowSide::kImage}, {WindowSide::kFilter}, {WindowSide::kChannel}, {WindowSide::kWindows, kOut}};
constexpr WindowOperandInfo kDepthwiseInputOperands[] = {
    {WindowSide::kWindows}, {WindowSide::kFilter}, {WindowSide::kImage, kOut}};
constexpr WindowOperandInfo kDepthwiseWeightOperands[] = {
    {WindowSide::kWindows}, {WindowSide::kImage}, {WindowSide::kFilter, kOut}, {WindowSide::kChannel, kOut}};
constexpr WindowOperandInfo kMaxPoolOperands[] = {
    {WindowSide::kImage}, {WindowSide::kWindows, kOut}, {WindowSide::kWindows, kOut, kPositions}};
constexpr WindowOperandInfo kMaxPoolBackwardOperands[] = {
    {WindowSide::kWindows}, {WindowSide::kWindows, false, kPositions}, {WindowSide::kImage, kOut}};

constexpr WindowOperandInfo kResampleOperands[] = {{WindowSide::kImage}, {WindowSide::kWindows, kOut}};
constexpr WindowOperandInfo kResampleBackwardOperands[] = {{WindowSide::kWindows}, {WindowSide::kImage, kOut}};

constexpr WindowOpInfo kWindowOps[] = {
    {WindowOp::kAvgPool, "avg_pool", kAvgPoolOperands},
    {WindowOp::kAvgPoolBackward, "avg_pool_backward", kAvgPoolBackwardOperands},
    {WindowOp::kDepthwise, "depthwise", kDepthwiseOperands, 2},
    {WindowOp::kDepthwiseInput, "depthwise_input", kDepthwiseInputOperands},
    {WindowOp::kDepthwiseWeight, "depthwise_weight", kDepthwiseWeightOperands, 3, /*sumsOverBatch=*/true},
    {WindowOp::kMaxPool, "max_pool", kMaxPoolOperands},
    {WindowOp::kMaxPoolBackward, "max_pool_backward", kMaxPoolBackwardOperands},
    {WindowOp::kResample, "resample", kResampleOperands},
    {WindowOp::kResampleBackward, "resample_backward", kResampleBackwardOperands},
};

constexpr std::string_view kDivisorNames[] = {"constant", "inside", "padded", "sides"};
constexpr std::string_view kSamplingNames[] = {"nearest", "nearest_exact", "bilinear", "bilinear_aligned"};
constexpr std::string_view kOrderNames[] = {"joint", "separable"};

std::string textOf(const WindowAxis& axis, bool isResampling) {
  if (isResampling) return formatText("{} {} {}", axis.image, axis.windows, formatDouble(axis.ratio));
  return formatText("{} {} {} {} {} {}", axis.image, axis.windows, axis.kernel, axis.stride, axis.padding,
                    axis.dilation);
}

StatusOr<WindowAxis> parseAxis(TextReader& in, bool isResampling) {
  WindowAxis axis;
  if (isResampling) {
    AG_ASSIGN_OR_RETURN(axis.image, in.readInteger());
    AG_ASSIGN_OR_RETURN(axis.windows, in.readInteger());
    AG_ASSIGN_OR_RETURN(axis.ratio, in.readDouble());
    return axis;
  }
  for (int64_t* number : {&axis.image, &axis.windows, &axis.kernel, &axis.stride, &axis.padding, &axis.dilation}) {
    AG_ASSIGN_OR_RETURN(*number, in.readInteger());
  }
  return axis;
}

// The index of the next word in a list of names.
template <size_t kNumNames>
StatusOr<size_t> parseName(TextReader& in, const std::string_view (&names)[kNumNames], const char* expected) {
  AG_ASSIGN_OR_RETURN(const std::string name, in.readWord());
  const auto found = std::ranges::find(names, name);
  if (found == std::end(names)) return in.fail(expected);
  return static_cast<size_t>(found - std::begin(names));
}

Status verifyAxis(const WindowAxis& axis) {
  if (!(axis.ratio >= 0) || !std::isfinite(axis.ratio)) return invalidArgument("a ratio must not be negative");
  const bool isPositive = std::min({axis.image, axis.windows, axis.kernel, axis.stride, axis.dilation}) > 0;
  return isPositive && axis.padding >= 0 ? Status() : invalidArgument("a window's sizes must be positive");
}

Status verifyOperand(const ClusterOperand& operand, const WindowOperandInfo& info, DType dtype) {
  if (operand.isOutput != info.isOutput) return invalidArgument("is an input instead of an output, or the reverse");
  if (operand.dtype != (info.isPosition ? DType::kI64 : dtype)) return invalidArgument("has the wrong dtype");
  const bool isPlain = !operand.isPerRow && !operand.isPerBlock;
  return isPlain && operand.columns != ClusterOperand::Columns::kBroadcast
             ? Status()
             : invalidArgument("must have an element for each channel");
}

}  // namespace

const WindowOpInfo& infoOf(WindowOp op) {
  const auto found = std::ranges::find(kWindowOps, op, &WindowOpInfo::op);
  AG_CHECK(found != std::end(kWindowOps), "window operation {}", static_cast<int>(op));
  return *found;
}

bool Window::isInterpolating() const {
  return isResampling() && (sampling == Sampling::kBilinear || sampling == Sampling::kBilinearAligned);
}

std::string Window::toString() const {
  const std::string axes = formatText("window {} rows {} columns {}", infoOf(op).name, textOf(rows, isResampling()),
                                      textOf(columns, isResampling()));
  if (isResampling()) {
    return formatText("{} sampling {} {}", axes, kSamplingNames[static_cast<size_t>(sampling)],
                      kOrderNames[static_cast<size_t>(order)]);
  }
  return formatText("{} divisor {} {}{}", axes, kDivisorNames[static_cast<size_t>(dividesBy)], divisor,
                    multipliesPadding ? " multiplies_padding" : "");
}

StatusOr<Window> parseWindow(TextReader& in) {
  Window window;
  AG_ASSIGN_OR_RETURN(const std::string name, in.readWord());
  const auto row = std::ranges::find(kWindowOps, name, &WindowOpInfo::name);
  if (row == std::end(kWindowOps)) return in.fail("expected the name of a window operation");
  window.op = row->op;
  AG_RETURN_IF_ERROR(in.expect("rows"));
  AG_ASSIGN_OR_RETURN(window.rows, parseAxis(in, window.isResampling()));
  AG_RETURN_IF_ERROR(in.expect("columns"));
  AG_ASSIGN_OR_RETURN(window.columns, parseAxis(in, window.isResampling()));
  if (window.isResampling()) {
    AG_RETURN_IF_ERROR(in.expect("sampling"));
    AG_ASSIGN_OR_RETURN(const size_t sampling, parseName(in, kSamplingNames, "expected the name of a sampling"));
    AG_ASSIGN_OR_RETURN(const size_t order, parseName(in, kOrderNames, "expected joint or separable"));
    window.sampling = static_cast<Sampling>(sampling);
    window.order = static_cast<SamplingOrder>(order);
    return window;
  }
  AG_RETURN_IF_ERROR(in.expect("divisor"));
  AG_ASSIGN_OR_RETURN(const size_t divisor, parseName(in, kDivisorNames, "expected constant, inside, padded or sides"));
  window.dividesBy = static_cast<WindowDivisor>(divisor);
  AG_ASSIGN_OR_RETURN(window.divisor, in.readInteger());
  window.multipliesPadding = in.accept("multiplies_padding");
  return window;
}

int64_t windowLanes(DType dtype) { return dtype == DType::kF64 ? 8 : 16; }

int64_t countPositions(const WindowAxis& axis, WindowDivisor dividesBy, int64_t index) {
  const int64_t begin = index * axis.stride - axis.padding;
  const int64_t end = std::min(begin + axis.kernel, axis.image + axis.padding);
  if (dividesBy == WindowDivisor::kPadded) return end - begin;
  return std::min(end, axis.image) - std::max<int64_t>(begin, 0);
}

const WindowOperandInfo& operandInfo(const Cluster& cluster, size_t operand) {
  const WindowOpInfo& info = infoOf(cluster.window->op);
  const bool isAfterMissing =
      cluster.operands.size() < info.operands.size() && static_cast<int32_t>(operand) >= info.optional;
  return info.operands[operand + (isAfterMissing ? 1 : 0)];
}

Status verifyWindow(const Cluster& cluster) {
  const WindowOpInfo& info = infoOf(cluster.window->op);
  const auto fail = [&](std::string_view rule) {
    return invalidArgument(std::string(info.name) + ": " + std::string(rule));
  };
  if (cluster.outerRank != 3) return fail("a window has rank 3");
  if (!cluster.nodes.empty() || !cluster.stores.empty()) return fail("a window has no nodes and no stores");
  AG_RETURN_IF_ERROR(verifyAxis(cluster.window->rows));
  AG_RETURN_IF_ERROR(verifyAxis(cluster.window->columns));
  const size_t numRequired = info.operands.size() - (info.optional >= 0 ? size_t{1} : size_t{0});
  if (cluster.operands.size() < numRequired || cluster.operands.size() > info.operands.size()) {
    return fail("has another number of operands");
  }
  const bool readsPadding = info.op == WindowOp::kDepthwise || info.op == WindowOp::kDepthwiseWeight;
  if (cluster.window->multipliesPadding && !readsPadding) return fail("has no padding to multiply");
  const DType dtype = cluster.operands[0].dtype;
  if (!isFloat(dtype)) return fail("computes floats only");
  for (size_t i = 0; i < cluster.operands.size(); ++i) {
    AG_RETURN_IF_ERROR(verifyOperand(cluster.operands[i], operandInfo(cluster, i), dtype)
                           .withContext(formatText("operand {} of {}", i, info.name)));
  }
  return {};
}

}  // namespace agspeed::compiler
