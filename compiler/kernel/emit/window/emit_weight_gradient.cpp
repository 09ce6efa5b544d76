// SPDX-License-Identifier: Apache-2.0
// The gradients of filters and bias. A band of windows is multiplied with the elements of the image that each tap
// reads. The sums of a band stay in registers, and are then added to the sums of the block of channels. So chains of
// additions are short, and their order depends on sizes alone.
#include <algorithm>

#include "compiler/kernel/emit/window/control_flow.h"
#include "compiler/kernel/emit/window/emit_window.h"
#include "compiler/kernel/emit/window/source_rows.h"
#include "compiler/kernel/emit/window/window_formulas.h"

namespace agspeed::compiler {

using namespace mlir;
using namespace passes;

namespace {

constexpr int64_t kMostSums = 7;  // in registers: with two registers for a vector, and one vector for gradients

class WeightGradientEmitter {
 public:
  WeightGradientEmitter(ValueBuilder& b, const Cluster& cluster, ValueRange arguments)
      : b_(b),
        cluster_(cluster),
        plan_(planWindow(*cluster.window, cluster.operands[0].dtype)),
        kernelRows_(cluster.window->rows.kernel),
        kernelColumns_(cluster.window->columns.kernel),
        memory_(b, cluster, arguments[0], arguments[1]),
        image_(b, memory_, kImage, plan_, plan_.skipsPadding ? std::nullopt : std::optional(0.0)),
        gradient_(allocateTile(b, plan_.bandGroups, plan_.columns.results, memory_.vectorOf(kGradient))),
        sums_(allocateTile(b, kernelRows_ + 1, kernelColumns_, memory_.vectorOf(kWeight))) {}

  void emit(Val begin, Val end) {
    emitFor(begin, end, [&](Val block) {
      Val channel = block * at(memory_.lanes());
      emitFor(at(0), at((kernelRows_ + 1) * kernelColumns_),
              [&](Val position) { storeVector(sums_, position, 0, zero()); });
      emitFor(at(0), memory_.numImages(), [&](Val image) {
        memory_.enter(image, channel);
        emitBands();
      });
      memory_.enter(at(0), channel);
      emitFor(at(0), at(kernelRows_), [&](Val row) { memory_.unpack(kWeight, row, sums_, row, kernelColumns_); });
      if (hasBias()) memory_.unpack(kBias, at(0), sums_, at(kernelRows_), 1);
    });
  }

 private:
  static constexpr int kGradient = 0;
  static constexpr int kImage = 1;
  static constexpr int kWeight = 2;
  static constexpr int kBias = 3;

  Val at(int64_t value) { return b_.integer(b_.ops().getI64Type(), value); }
  Val zero() { return b_.constant(sums_.vector, 0); }
  bool hasBias() const { return cluster_.operands.size() > kBias; }

  void emitBands() {
    const int64_t numGroups = plan_.rows.groups();
    const int64_t numBands = (numGroups + plan_.bandGroups - 1) / plan_.bandGroups;
    emitFor(at(0), at(numBands), [&](Val band) {
      Val first = band * at(plan_.bandGroups);
      Val left = at(numGroups) - first;
      Val count = smaller(left, at(plan_.bandGroups));
      image_.pack(first, count, nullptr);
      memory_.pack(kGradient, {first, count, plan_.bandGroups}, gradient_, at(0), {.count = plan_.columns.results});
      for (const WindowTap& row : plan_.rows.taps[0]) emitTapRow(row, first, count);
      if (hasBias()) addBias(count);
    });
  }

  static Val smaller(Val a, Val b) { return select(lt(a, b), a, b); }
  static Val larger(Val a, Val b) { return select(gt(a, b), a, b); }

  void addBias(Val numRows) {
    const auto addGradient = [&](Val pixel, const std::vector<Val>& sums) {
      return std::vector<Val>{sums[0] + loadVector(gradient_, pixel)};
    };
    add(kernelRows_ * kernelColumns_, emitFor(at(0), numRows * at(gradient_.columns), {zero()}, addGradient)[0]);
  }

  // Adds the products of one row of the kernel, from the band of `count` rows of windows that begins at `first`.
  void emitTapRow(const WindowTap& row, Val first, Val count) {
    const std::vector<WindowTap>& columns = plan_.columns.taps[0];
    Val begin = at(0);
    Val end = count;
    if (plan_.skipsPadding) {
      const auto [firstInside, endInside] = plan_.rows.groupsInside(row);
      begin = larger(at(firstInside) - first, at(0));
      end = smaller(at(endInside) - first, count);
    }
    for (auto next = columns.begin(); next != columns.end();) {
      const auto last = columns.end() - next > kMostSums ? next + kMostSums : columns.end();
      const std::vector<WindowTap> some(next, last);
      const std::vector<Val> sums = emitSums(row, some, begin, end);
      for (size_t i = 0; i < some.size(); ++i) add(row.index * kernelColumns_ + some[i].index, sums[i]);
      next = last;
    }
  }

  std::vector<Val> emitSums(const WindowTap& row, const std::vector<WindowTap>& columns, Val begin, Val end) {
    const std::vector<Val> zeros(columns.size(), zero());
    return emitFor(begin, end, zeros, [&](Val group, const std::vector<Val>& sums) {
      Val tileRow = group * at(plan_.rows.step) + at(row.offset - plan_.rows.first);
      Val imageRow = tileRow * at(plan_.tileColumns);
      Val gradientRow = group * at(gradient_.columns);
      std::vector<Val> next = sums;
      for (const Segment& segment : segmentsOf(columns)) {
        next = emitFor(at(segment.begin), at(segment.end), next, [&](Val pixel, const std::vector<Val>& carried) {
          std::vector<Val> added = carried;
          Val gradient = loadVector(gradient_, gradientRow + pixel);
          Val position = imageRow + pixel * at(plan_.columns.step);
          for (size_t i : segment.taps) {
            Val element = loadVector(image_.tile(), position, columns[i].offset - plan_.firstColumn);
            added[i] = fma(gradient, element, added[i]);
          }
          return added;
        });
      }
      return next;
    });
  }

  // Neighbouring pixels of a row of windows that read the same taps.
  struct Segment {
    int64_t begin;
    int64_t end;
    std::vector<size_t> taps;
  };

  std::vector<Segment> segmentsOf(const std::vector<WindowTap>& columns) const {
    std::vector<int64_t> bounds = {0, plan_.columns.results};
    for (const WindowTap& tap : columns) {
      if (!plan_.skipsPadding) break;
      const auto [begin, end] = plan_.columns.groupsInside(tap);
      bounds.insert(bounds.end(), {begin, end});
    }
    std::ranges::sort(bounds);
    std::vector<Segment> segments;
    for (size_t i = 0; i + 1 < bounds.size(); ++i) {
      if (bounds[i] == bounds[i + 1]) continue;
      Segment& segment = segments.emplace_back(Segment{bounds[i], bounds[i + 1], {}});
      for (size_t tap = 0; tap < columns.size(); ++tap) {
        const bool reads = !plan_.skipsPadding || plan_.columns.isInside(segment.begin, columns[tap]);
        if (reads) segment.taps.push_back(tap);
      }
    }
    return segments;
  }

  void add(int64_t position, Val value) {
    storeVector(sums_, at(0), position, loadVector(sums_, at(0), position) + value);
  }

  ValueBuilder& b_;
  const Cluster& cluster_;
  WindowPlan plan_;
  int64_t kernelRows_;
  int64_t kernelColumns_;
  WindowMemory memory_;
  SourceRows image_;
  LaneTile gradient_;
  LaneTile sums_;  ///< one row for each row of the kernel, and one whose first vector is the bias's
};

}  // namespace

void emitWeightGradient(ValueBuilder& b, const Cluster& cluster, ValueRange arguments) {
  WeightGradientEmitter(b, cluster, arguments).emit(b.wrap(arguments[2]), b.wrap(arguments[3]));
}

}  // namespace agspeed::compiler
