// SPDX-License-Identifier: Apache-2.0
#include "compiler/graph/window_plan.h"

#include <algorithm>
#include <limits>

#include "compiler/graph/resample_plan.h"

namespace agspeed::compiler {
namespace {

constexpr int64_t kTileBytes = 24 << 10;         // half of a small first-level cache
constexpr int64_t kLongestTileBytes = 64 << 10;  // of one group of rows; tiles are on the stack
constexpr int64_t kMostTaps = 64;                // they are unrolled

int64_t bytesOf(const WindowPlan& plan, DType dtype) {
  return plan.tileRows() * plan.tileColumns * windowLanes(dtype) * static_cast<int64_t>(dtype == DType::kF64 ? 8 : 4);
}

bool isImageGradient(WindowOp op) {
  return op == WindowOp::kAvgPoolBackward || op == WindowOp::kDepthwiseInput || op == WindowOp::kMaxPoolBackward;
}

}  // namespace

AxisPlan planAxis(const WindowAxis& axis, bool isImageResult) {
  AxisPlan plan;
  plan.results = isImageResult ? axis.image : axis.windows;
  plan.source = isImageResult ? axis.windows : axis.image;
  plan.step = isImageResult ? 1 : axis.stride;
  plan.taps.resize(isImageResult ? axis.stride : 1);
  int64_t last = std::numeric_limits<int64_t>::min();
  plan.first = std::numeric_limits<int64_t>::max();
  for (int64_t phase = 0; phase < plan.phases(); ++phase) {
    for (int64_t k = 0; k < axis.kernel; ++k) {
      const int64_t distance =
          isImageResult ? phase + axis.padding - k * axis.dilation : k * axis.dilation - axis.padding;
      if (isImageResult && distance % axis.stride != 0) continue;
      const int64_t offset = isImageResult ? distance / axis.stride : distance;
      plan.taps[phase].push_back({k, offset});
      plan.first = std::min(plan.first, offset);
      last = std::max(last, offset);
    }
    std::ranges::sort(plan.taps[phase], {}, &WindowTap::offset);
  }
  plan.span = last - plan.first + 1;
  return plan;
}

bool AxisPlan::isInside(int64_t group, const WindowTap& tap) const {
  const int64_t position = group * step + tap.offset;
  return position >= 0 && position < source;
}

std::pair<int64_t, int64_t> AxisPlan::groupsInside(const WindowTap& tap) const {
  int64_t begin = 0;
  while (begin < groups() && !isInside(begin, tap)) ++begin;
  int64_t end = begin;
  while (end < groups() && isInside(end, tap)) ++end;
  return {begin, end};
}

WindowPlan planWindow(const Window& window, DType dtype) {
  WindowPlan plan;
  plan.rows = planAxis(window.rows, isImageGradient(window.op));
  plan.columns = planAxis(window.columns, isImageGradient(window.op));
  const bool isConvolution = window.op == WindowOp::kDepthwise || window.op == WindowOp::kDepthwiseInput ||
                             window.op == WindowOp::kDepthwiseWeight;
  plan.skipsPadding = isConvolution && !window.multipliesPadding;
  const bool needsBorders = !plan.skipsPadding && plan.columns.hasBorders();
  plan.firstColumn = needsBorders ? plan.columns.first : 0;
  plan.tileColumns = needsBorders ? plan.columns.sourceLength(plan.columns.groups()) : plan.columns.source;
  plan.bandGroups = plan.rows.groups();
  while (plan.bandGroups > 1 && bytesOf(plan, dtype) > kTileBytes) --plan.bandGroups;
  return plan;
}

Status checkWindowSize(const Window& window, DType dtype) {
  if (window.isResampling()) return checkResampleSize(window, dtype);
  if (window.rows.kernel * window.columns.kernel > kMostTaps) {
    return unsupported("its windows have more than {} elements", kMostTaps);
  }
  if (window.rows.image > std::numeric_limits<int32_t>::max() / window.columns.image) {
    return unsupported("its images are too large");
  }
  if (bytesOf(planWindow(window, dtype), dtype) > kLongestTileBytes) return unsupported("its rows are too long");
  return {};
}

}  // namespace agspeed::compiler
