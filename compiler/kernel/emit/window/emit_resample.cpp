// SPDX-License-Identifier: Apache-2.0
// Kernels of resampling and of its gradients. Positions and weights of samples are in tables, because they follow no
// simple rule if sizes do not divide each other.
//
// Rows of windows are computed in order. Each reads one row of the image or two neighbours, and later ones never read
// earlier rows. So the kernel holds two rows of the image in a tile, row r at r mod 2. It packs a row once, before its
// first use. A gradient adds to these two rows, and unpacks a row after its last use. Within a row, an element of the
// image gathers from its windows. ATen adds to gradients window by window, and kernels add in that order.
#include <algorithm>
#include <array>

#include "compiler/graph/resample_plan.h"
#include "compiler/kernel/emit/window/constant_table.h"
#include "compiler/kernel/emit/window/control_flow.h"
#include "compiler/kernel/emit/window/emit_window.h"
#include "compiler/kernel/emit/window/window_memory.h"

namespace agspeed::compiler {

using namespace mlir;
using namespace passes;

namespace {

// How a sample belongs to its neighbours in a list. Both samples of a window at the end of an axis may be one element.
enum SampleKind : int64_t { kSingle, kFirstOfPair, kSecondOfPair };

// The samples of one axis, one after the other, for each window or each element of the image.
struct SampleTables {
  SampleTables(ValueBuilder& b, const AxisSamples& samples, FloatType type) {
    std::vector<int64_t> begins, sources, kinds;
    std::vector<double> weights;
    for (const std::vector<Sample>& list : samples) {
      begins.push_back(static_cast<int64_t>(sources.size()));
      for (size_t i = 0; i < list.size(); ++i) {
        const int64_t source = list[i].source;
        const bool isFirst = i + 1 < list.size() && list[i + 1].source == source;
        const bool isSecond = i > 0 && list[i - 1].source == source;
        sources.push_back(source);
        weights.push_back(list[i].weight);
        kinds.push_back(isFirst ? kFirstOfPair : isSecond ? kSecondOfPair : kSingle);
      }
    }
    begins.push_back(static_cast<int64_t>(sources.size()));
    begin = ConstantTable(b, begins);
    source = ConstantTable(b, sources);
    kind = ConstantTable(b, kinds);
    weight = ConstantTable(b, weights, type);
  }

  ConstantTable begin;  ///< per window or element, and the number of samples
  ConstantTable source, kind, weight;
};

// For each row of windows, the first row of the image to pack (resampling) or to unpack (gradients) at it. The last
// number is the first row that gradients unpack at the end.
std::vector<int64_t> firstNewRows(const AxisSamples& rows, bool isGradient) {
  std::vector<int64_t> firsts{0};
  for (const std::vector<Sample>& samples : rows) {
    if (!isGradient) firsts.back() = std::max(firsts.back(), samples.front().source);
    firsts.push_back(isGradient ? samples.front().source : samples.back().source + 1);
  }
  return firsts;
}

class ResampleEmitter {
 public:
  ResampleEmitter(ValueBuilder& b, const Cluster& cluster, ValueRange arguments)
      : b_(b),
        cluster_(cluster),
        window_(*cluster.window),
        memory_(b, cluster, arguments[0], arguments[1]),
        image_(allocateTile(b, kImageRows, window_.columns.image, memory_.vectorOf(0))),
        windows_(allocateTile(b, kWindowRows, window_.columns.windows, memory_.vectorOf(0))),
        rows_(samplesOf(window_.rows)),
        columns_(samplesOf(window_.columns)),
        rowTables_(b, rows_, weightType()),
        columnTables_(b, isGradient() ? windowsOfSamples(columns_, window_.columns.image) : columns_, weightType()),
        newRows_(b, firstNewRows(rows_, isGradient())) {}

  void emit(Val begin, Val end) {
    const bool isChannelsLast = cluster_.operands[0].columns == ClusterOperand::Columns::kContiguous;
    memory_.forEachUnit(begin, end, isChannelsLast, [&](Val, Val) { isGradient() ? emitGradient() : emitImage(); });
  }

 private:
  Val at(int64_t value) { return b_.integer(b_.ops().getI64Type(), value); }
  FloatType weightType() { return cast<FloatType>(memory_.vectorOf(0).getElementType()); }
  AxisSamples samplesOf(const WindowAxis& axis) const {
    return samplesOfWindows(window_, axis, cluster_.operands[0].dtype);
  }
  bool isGradient() const { return window_.op == WindowOp::kResampleBackward; }
  bool isNearest() const { return !window_.isInterpolating(); }
  Val splat(Val weight) { return b_.splat(weight, image_.vector); }

  // The row of the tile that holds a row of the image, and its first position.
  Val slotOf(Val imageRow) { return imageRow & at(1); }
  Val beginOf(Val imageRow) { return slotOf(imageRow) * at(window_.columns.image); }

  // --- resampling: the samples of window i are i, or 2 i and 2 i + 1 ---

  void emitImage() {
    emitFor(at(0), at(window_.rows.windows), [&](Val row) {
      Val top = isNearest() ? row : row * at(2);
      Val bottom = isNearest() ? top : top + at(1);
      Val lastRow = rowTables_.source.at(bottom);
      emitFor(newRows_.at(row), lastRow + at(1), [&](Val imageRow) {
        memory_.pack(0, imageRow, image_, slotOf(imageRow), {.count = window_.columns.image});
      });
      if (isNearest()) {
        copyNearest(beginOf(lastRow));
      } else {
        interpolate({beginOf(rowTables_.source.at(top)), beginOf(lastRow)},
                    {rowTables_.weight.at(top), rowTables_.weight.at(bottom)});
      }
      memory_.unpack(1, row, windows_, at(0), window_.columns.windows);
    });
  }

  void copyNearest(Val begin) {
    emitFor(at(0), at(window_.columns.windows), [&](Val column) {
      storeVector(windows_, column, 0, loadVector(image_, begin + columnTables_.source.at(column)));
    });
  }

  using Pair = std::array<Val, 2>;

  void interpolate(const Pair& begins, const Pair& rowWeights) {
    emitFor(at(0), at(window_.columns.windows), [&](Val column) {
      Val left = column * at(2);
      Val right = left + at(1);
      const auto load = [&](Val begin, Val sample) {
        return loadVector(image_, begin + columnTables_.source.at(sample));
      };
      const Pair columnWeights{columnTables_.weight.at(left), columnTables_.weight.at(right)};
      const Corners corners{load(begins[0], left), load(begins[0], right), load(begins[1], left),
                            load(begins[1], right)};
      const bool isJoint = window_.order == SamplingOrder::kJoint;
      Val value = isJoint ? joint(corners, rowWeights, columnWeights) : separable(corners, rowWeights, columnWeights);
      storeVector(windows_, column, 0, value);
    });
  }

  using Corners = std::array<Val, 4>;  // top left, top right, bottom left, bottom right

  Val joint(const Corners& corners, const Pair& rows, const Pair& columns) {
    Val sum = corners[2] * splat(rows[1] * columns[0]);
    sum = fma(corners[3], splat(rows[1] * columns[1]), sum);
    sum = fma(corners[1], splat(rows[0] * columns[1]), sum);
    return fma(corners[0], splat(rows[0] * columns[0]), sum);
  }

  Val separable(const Corners& corners, const Pair& rows, const Pair& columns) {
    const auto along = [&](Val first, Val second, const Pair& weights) {
      return fma(first, splat(weights[0]), second * splat(weights[1]));
    };
    return along(along(corners[0], corners[1], columns), along(corners[2], corners[3], columns), rows);
  }

  // --- gradients ---

  void emitGradient() {
    emitFor(at(0), at(kImageRows), [&](Val slot) { clear(slot); });
    emitFor(at(0), at(window_.rows.windows), [&](Val row) {
      Val first = isNearest() ? row : row * at(2);
      Val firstRow = rowTables_.source.at(first);
      emitFor(newRows_.at(row), firstRow, [&](Val imageRow) { finish(imageRow); });
      memory_.pack(0, row, windows_, at(0), {.count = window_.columns.windows});
      if (isNearest()) return addRow(firstRow, {first, first}, false);
      Val second = first + at(1);
      Val secondRow = rowTables_.source.at(second);
      const auto addBoth = [&] {
        addRow(firstRow, {first, first}, false);
        addRow(secondRow, {second, second}, false);
      };
      emitIf(eq(firstRow, secondRow), [&] { addRow(firstRow, {first, second}, true); }, addBoth);
    });
    emitFor(newRows_.at(at(window_.rows.windows)), at(window_.rows.image), [&](Val imageRow) { finish(imageRow); });
  }

  void clear(Val slot) {
    emitFor(at(0), at(window_.columns.image), [&](Val column) {
      storeVector(image_, slot * at(window_.columns.image) + column, 0, b_.constant(image_.vector, 0));
    });
  }

  void finish(Val imageRow) {
    memory_.unpack(1, imageRow, image_, slotOf(imageRow), window_.columns.image);
    clear(slotOf(imageRow));
  }

  // Adds the current row of windows to a row of the image, with the weight of the first sample, or with both.
  void addRow(Val imageRow, const Pair& rowSamples, bool isPair) {
    Val begin = beginOf(imageRow);
    const Pair weights{rowTables_.weight.at(rowSamples[0]), rowTables_.weight.at(rowSamples[1])};
    emitFor(at(0), at(window_.columns.image), [&](Val column) {
      const auto add = [&](Val sample, const std::vector<Val>& sums) {
        Val gradient = loadVector(windows_, columnTables_.source.at(sample));
        if (isNearest()) return std::vector<Val>{sums[0] + gradient};
        const auto addWith = [&](Val rowWeight, Val columnSample, Val sum) {
          return fma(splat(rowWeight * columnTables_.weight.at(columnSample)), gradient, sum);
        };
        Val sum = addWith(weights[0], sample, sums[0]);
        return std::vector<Val>{isPair ? addSecondRow(sample, weights[1], addWith, sum) : sum};
      };
      Val first = columnTables_.begin.at(column);
      Val last = columnTables_.begin.at(column + at(1));
      storeVector(image_, begin + column, 0, emitFor(first, last, {loadVector(image_, begin + column)}, add)[0]);
    });
  }

  // A window has two weights for rows. ATen first adds all parts with the first weight, then all parts with the second
  // one. So the second part of the first column of a pair waits until the first part of the second column was added.
  Val addSecondRow(Val sample, Val weight, llvm::function_ref<Val(Val, Val, Val)> addWith, Val sum) {
    Val kind = columnTables_.kind.at(sample);
    Val isSecond = eq(kind, at(kSecondOfPair));
    Val previous = select(isSecond, sample - at(1), sample);
    Val withPrevious = select(isSecond, addWith(weight, previous, sum), sum);
    return select(eq(kind, at(kFirstOfPair)), sum, addWith(weight, sample, withPrevious));
  }

  ValueBuilder& b_;
  const Cluster& cluster_;
  const Window& window_;
  WindowMemory memory_;
  LaneTile image_, windows_;
  AxisSamples rows_, columns_;
  SampleTables rowTables_, columnTables_;
  ConstantTable newRows_;  ///< see firstNewRows()
};

}  // namespace

void emitResample(ValueBuilder& b, const Cluster& cluster, ValueRange arguments) {
  ResampleEmitter(b, cluster, arguments).emit(b.wrap(arguments[2]), b.wrap(arguments[3]));
}

}  // namespace agspeed::compiler
