// SPDX-License-Identifier: Apache-2.0
#include "compiler/kernel/emit/window/window_formulas.h"

#include <algorithm>
#include <limits>

#include "compiler/kernel/emit/window/control_flow.h"

namespace agspeed::compiler {

using namespace mlir;
using namespace passes;

namespace {

Val smaller(Val a, Val b) { return select(lt(a, b), a, b); }
Val larger(Val a, Val b) { return select(gt(a, b), a, b); }

}  // namespace

Val WindowFormulas::at(int64_t value) const { return b_.integer(b_.ops().getI64Type(), value); }

std::optional<double> WindowFormulas::border(int operand) const {
  if (plan_.skipsPadding) return std::nullopt;
  if (cluster_.operands[operand].dtype == DType::kI64) return -1;
  return window_.op == WindowOp::kMaxPool ? -std::numeric_limits<double>::infinity() : 0;
}

// As many as keep the accumulators and their inputs in 16 registers, with two registers for a vector.
int64_t WindowFormulas::pixelsPerBlock() const {
  return window_.op == WindowOp::kMaxPool || window_.op == WindowOp::kMaxPoolBackward ? 2 : 4;
}

void WindowFormulas::forEachTap(const PixelBlock& block, Accumulate body) const {
  for (const WindowTap& row : plan_.rows.taps[block.rowPhase]) {
    for (const WindowTap& column : plan_.columns.taps[block.columnPhase]) {
      const int64_t offset = (row.offset - plan_.rows.first) * tiles_[0].columns + column.offset - plan_.firstColumn;
      for (int64_t pixel = 0; pixel < block.count; ++pixel) {
        body(static_cast<size_t>(pixel), row, column, offset + pixel * plan_.columns.step);
      }
    }
  }
}

Val WindowFormulas::pixelColumn(const PixelBlock& block, size_t pixel) const {
  return block.column + at(static_cast<int64_t>(pixel) * plan_.columns.phases());
}

PixelValues WindowFormulas::compute(const PixelBlock& block) const {
  switch (window_.op) {
    case WindowOp::kAvgPool:
    case WindowOp::kAvgPoolBackward: return sum(block);
    case WindowOp::kDepthwise:
    case WindowOp::kDepthwiseInput: return convolve(block);
    case WindowOp::kMaxPool: return maximum(block);
    case WindowOp::kMaxPoolBackward: return gatherMaxima(block);
    case WindowOp::kDepthwiseWeight:  // emit_weight_gradient.cpp
    case WindowOp::kResample:         // emit_resample.cpp
    case WindowOp::kResampleBackward: break;
  }
  AG_CHECK(false, "{} has no formula for pixels", infoOf(window_.op).name);
  return {};
}

Val WindowFormulas::prepare(Val loaded, Val row, Val column) const {
  return prepares() ? average(loaded, row, column) : loaded;
}

// --- averages ---

// A constant if all windows have the same number of positions.
Val WindowFormulas::count(const WindowAxis& axis, Val index, Type type) const {
  if (window_.dividesBy == WindowDivisor::kSides) return b_.constant(type, static_cast<double>(axis.kernel));
  const int64_t first = countPositions(axis, window_.dividesBy, 0);
  bool isSame = true;
  for (int64_t i = 1; i < axis.windows; ++i) isSame &= countPositions(axis, window_.dividesBy, i) == first;
  if (isSame) return b_.constant(type, static_cast<double>(first));
  Val begin = index * at(axis.stride) - at(axis.padding);
  Val end = smaller(begin + at(axis.kernel), at(axis.image + axis.padding));
  if (window_.dividesBy == WindowDivisor::kInside) {
    begin = larger(begin, at(0));
    end = smaller(end, at(axis.image));
  }
  Val number = end - begin;
  Val scalar = b_.wrap(
      arith::SIToFPOp::create(b_.ops(), b_.loc(), cast<VectorType>(type).getElementType(), number.value).getResult());
  return b_.splat(scalar, type);
}

Val WindowFormulas::average(Val sum, Val row, Val column) const {
  if (window_.dividesBy == WindowDivisor::kConstant) return sum / static_cast<double>(window_.divisor);
  Val rows = count(window_.rows, row, sum.type());
  Val columns = count(window_.columns, column, sum.type());
  return window_.dividesBy == WindowDivisor::kSides ? sum / rows / columns : sum / (rows * columns);
}

PixelValues WindowFormulas::sum(const PixelBlock& block) const {
  std::vector<Val> sums(static_cast<size_t>(block.count), b_.constant(tiles_[0].vector, 0));
  forEachTap(block, [&](size_t pixel, const WindowTap&, const WindowTap&, int64_t offset) {
    sums[pixel] = sums[pixel] + loadVector(tiles_[0], block.position, offset);
  });
  if (window_.op == WindowOp::kAvgPoolBackward) return {sums};
  for (size_t pixel = 0; pixel < sums.size(); ++pixel) {
    sums[pixel] = average(sums[pixel], block.row, pixelColumn(block, pixel));
  }
  return {sums};
}

// --- convolutions ---

bool WindowFormulas::clips(int64_t columnPhase, int64_t firstGroup, int64_t count) const {
  if (!plan_.skipsPadding) return false;
  const AxisPlan& axis = plan_.columns;
  return std::ranges::any_of(axis.taps[columnPhase], [&](const WindowTap& tap) {
    return !axis.isInside(firstGroup, tap) || !axis.isInside(firstGroup + count - 1, tap);
  });
}

std::pair<Val, Val> WindowFormulas::tapRows(Val group, int64_t rowPhase) const {
  const std::vector<WindowTap>& taps = plan_.rows.taps[rowPhase];
  if (!plan_.skipsPadding) return {at(0), at(static_cast<int64_t>(taps.size()))};
  Val begin = at(0);
  Val end = at(0);
  for (const WindowTap& tap : taps) {
    Val position = group * at(plan_.rows.step) + at(tap.offset);
    begin = begin + select(lt(position, at(0)), at(1), at(0));
    end = end + select(lt(position, at(plan_.rows.source)), at(1), at(0));
  }
  return {begin, end};
}

// The taps of an axis and phase are equally far apart, in the kernel and in the source.
PixelValues WindowFormulas::convolve(const PixelBlock& block) const {
  const bool hasBias = window_.op == WindowOp::kDepthwise && cluster_.operands.size() == 4;
  Val bias = hasBias ? loadVector(tiles_[2], at(0)) : b_.constant(tiles_[0].vector, 0);
  const std::vector<Val> initial(static_cast<size_t>(block.count), bias);
  const std::vector<WindowTap>& rows = plan_.rows.taps[block.rowPhase];
  if (rows.empty()) return {initial};
  const auto rowAt = [&](Val tap, int64_t WindowTap::* member, int64_t first) {
    const int64_t distance = rows.size() > 1 ? rows[1].*member - rows[0].*member : 0;
    return tap * at(distance) + at(rows[0].*member - first);
  };
  const auto reads = [&](int64_t pixel, const WindowTap& column) {
    return !block.firstGroup || !plan_.skipsPadding || plan_.columns.isInside(*block.firstGroup + pixel, column);
  };
  const auto addRow = [&](Val row, const std::vector<Val>& carried) {
    std::vector<Val> sums = carried;
    Val position = block.position + rowAt(row, &WindowTap::offset, plan_.rows.first) * at(tiles_[0].columns);
    Val filterRow = rowAt(row, &WindowTap::index, 0) * at(window_.columns.kernel);
    for (const WindowTap& column : plan_.columns.taps[block.columnPhase]) {
      Val filter = loadVector(tiles_[1], filterRow, column.index);
      for (int64_t pixel = 0; pixel < block.count; ++pixel) {
        if (!reads(pixel, column)) continue;
        const int64_t offset = column.offset - plan_.firstColumn + pixel * plan_.columns.step;
        Val& sum = sums[static_cast<size_t>(pixel)];
        sum = fma(loadVector(tiles_[0], position, offset), filter, sum);
      }
    }
    return sums;
  };
  return {emitFor(block.tapRows.first, block.tapRows.second, initial, addRow)};
}

// --- maxima ---

// The first position of a window that is inside the image, from `begin`, which may be outside.
Val WindowFormulas::firstInside(const WindowAxis& axis, Val begin) const {
  Val missing = larger(at(axis.dilation - 1) - begin, at(0));
  Val steps = b_.wrap(arith::DivUIOp::create(b_.ops(), b_.loc(), missing.value, at(axis.dilation).value).getResult());
  return begin + steps * at(axis.dilation);
}

// Like ATen, a later element wins if it is larger, or NaN. Borders never win, so the first element inside the image is
// the result if all are -inf. Positions are relative to the first tap until the end.
PixelValues WindowFormulas::maximum(const PixelBlock& block) const {
  const WindowAxis& rows = window_.rows;
  const WindowAxis& columns = window_.columns;
  auto positionType = VectorType::get(tiles_[0].vector.getShape(), b_.ops().getI32Type());
  const auto splat = [&](Val position) {
    return b_.splat(convertInt(position, b_.ops().getI32Type(), Signedness::kSigned), positionType);
  };
  Val beginRow = block.row * at(rows.stride) - at(rows.padding);
  std::vector<Val> origins, positions;
  for (size_t pixel = 0; pixel < static_cast<size_t>(block.count); ++pixel) {
    Val beginColumn = pixelColumn(block, pixel) * at(columns.stride) - at(columns.padding);
    Val origin = beginRow * at(columns.image) + beginColumn;
    Val first = firstInside(rows, beginRow) * at(columns.image) + firstInside(columns, beginColumn);
    origins.push_back(splat(origin));
    positions.push_back(splat(first - origin));
  }
  std::vector<Val> maxima(positions.size(), b_.constant(tiles_[0].vector, -std::numeric_limits<double>::infinity()));
  forEachTap(block, [&](size_t pixel, const WindowTap& row, const WindowTap& column, int64_t offset) {
    Val value = loadVector(tiles_[0], block.position, offset);
    Val wins = gt(value, maxima[pixel]) | isNan(value);
    const int64_t distance = row.index * rows.dilation * columns.image + column.index * columns.dilation;
    maxima[pixel] = select(wins, value, maxima[pixel]);
    positions[pixel] = select(wins, b_.integer(positionType, distance), positions[pixel]);
  });
  for (size_t pixel = 0; pixel < positions.size(); ++pixel) positions[pixel] = positions[pixel] + origins[pixel];
  return {maxima, positions};
}

// An element of the image gets the gradients of the windows whose maximum it is, in the order of ATen's additions.
PixelValues WindowFormulas::gatherMaxima(const PixelBlock& block) const {
  auto positionType = cast<VectorType>(tiles_[1].vector);
  std::vector<Val> sums(static_cast<size_t>(block.count), b_.constant(tiles_[0].vector, 0));
  std::vector<Val> own;
  for (size_t pixel = 0; pixel < sums.size(); ++pixel) {
    Val position = block.row * at(window_.columns.image) + pixelColumn(block, pixel);
    own.push_back(b_.splat(convertInt(position, b_.ops().getI32Type(), Signedness::kSigned), positionType));
  }
  forEachTap(block, [&](size_t pixel, const WindowTap&, const WindowTap&, int64_t offset) {
    Val isMaximum = eq(loadVector(tiles_[1], block.position, offset), own[pixel]);
    Val gradient = loadVector(tiles_[0], block.position, offset);
    sums[pixel] = sums[pixel] + select(isMaximum, gradient, b_.like(gradient, 0));
  });
  return {sums};
}

}  // namespace agspeed::compiler
