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
        image_(b, memory_, kImage, plan_, /*border=*/0),
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
      Val count = select(lt(left, at(plan_.bandGroups)), left, at(plan_.bandGroups));
      image_.pack(first, count, nullptr);
      emitFor(at(0), count,
              [&](Val row) { memory_.pack(kGradient, first + row, gradient_, row, {.count = plan_.columns.results}); });
      const auto emitTaps = [&](bool skipsBorders) {
        for (const WindowTap& row : plan_.rows.taps[0]) emitTapRow(row, {first, count, skipsBorders});
      };
      if (!plan_.hasBorders()) return emitTaps(false);
      // An infinite gradient times the border's zero is NaN.
      Val isFinite = areFinite(gradient_, count * at(plan_.columns.results));
      emitIf(isFinite, [&] { emitTaps(false); }, [&] { emitTaps(true); });
    });
  }

  struct Band {
    Val first;  ///< row of windows
    Val count;
    bool skipsBorders = false;  ///< no tap outside of the image takes part
  };

  // Adds the products of one row of the kernel. The first row's loop also adds up the gradient, for the bias.
  void emitTapRow(const WindowTap& row, const Band& band) {
    const std::vector<WindowTap>& columns = plan_.columns.taps[0];
    for (size_t begin = 0; begin < columns.size(); begin += kMostSums) {
      const size_t end = std::min<size_t>(begin + kMostSums, columns.size());
      const bool addsBias = hasBias() && row.index == 0 && begin == 0;
      std::vector<Val> sums = emitSums(
          row,
          {columns.begin() + static_cast<std::ptrdiff_t>(begin), columns.begin() + static_cast<std::ptrdiff_t>(end)},
          addsBias, band);
      for (size_t i = begin; i < end; ++i) add(row.index * kernelColumns_ + columns[i].index, sums[i - begin]);
      if (addsBias) add(kernelRows_ * kernelColumns_, sums.back());
    }
  }

  std::vector<Val> emitSums(const WindowTap& row, const std::vector<WindowTap>& columns, bool addsBias,
                            const Band& band) {
    const std::vector<Val> zeros(columns.size() + (addsBias ? 1 : 0), zero());
    return emitFor(at(0), band.count, zeros, [&](Val group, const std::vector<Val>& sums) {
      Val tileRow = group * at(plan_.rows.step) + at(row.offset - plan_.rows.first);
      Val begin = tileRow * at(plan_.tileColumns());
      return emitFor(at(0), at(plan_.columns.results), sums, [&](Val pixel, const std::vector<Val>& carried) {
        std::vector<Val> next = carried;
        Val gradient = loadVector(gradient_, group * at(gradient_.columns) + pixel);
        Val position = begin + pixel * at(plan_.columns.step);
        for (size_t i = 0; i < columns.size(); ++i) {
          next[i] =
              fma(gradient, loadVector(image_.tile(), position, columns[i].offset - plan_.columns.first), next[i]);
          if (!band.skipsBorders) continue;
          Val isInside = isInSource(plan_.rows, band.first + group, row.offset) &
                         isInSource(plan_.columns, pixel, columns[i].offset);
          next[i] = select(isInside, next[i], carried[i]);
        }
        if (addsBias) next.back() = next.back() + gradient;
        return next;
      });
    });
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
