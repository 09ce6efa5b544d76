// SPDX-License-Identifier: Apache-2.0
#include "compiler/kernel/emit/window/emit_window.h"

#include "compiler/kernel/emit/window/control_flow.h"
#include "compiler/kernel/emit/window/source_rows.h"
#include "compiler/kernel/emit/window/window_formulas.h"

namespace agspeed::compiler {

using namespace mlir;
using namespace passes;

namespace {

constexpr int64_t kMostCollectedVectors = 256;  // a third of a small first-level cache; tiles are on the stack

class WindowEmitter {
 public:
  WindowEmitter(ValueBuilder& b, const Cluster& cluster, ValueRange arguments)
      : b_(b),
        cluster_(cluster),
        plan_(planWindow(*cluster.window, cluster.operands[0].dtype)),
        memory_(b, cluster, arguments[0], arguments[1]),
        formulas_(b, cluster, plan_, tiles_) {
    allocateTiles();
  }

  void emit(Val begin, Val end) {
    const bool isChannelsLast = cluster_.operands[0].columns == ClusterOperand::Columns::kContiguous;
    memory_.forEachUnit(begin, end, isChannelsLast, [&](Val unit, Val inner) {
      if (hasFilter() && isChannelsLast) {
        packFilters();
      } else if (hasFilter()) {
        emitIf(eq(inner, at(0)) | eq(unit, begin), [&] { packFilters(); }, [] {});
      }
      emitBands();
    });
  }

 private:
  Val at(int64_t value) { return b_.integer(b_.ops().getI64Type(), value); }

  // --- tiles ---

  WindowSide sideOf(size_t operand) const { return operandInfo(cluster_, operand).side; }
  bool isFilter(size_t operand) const {
    return sideOf(operand) == WindowSide::kFilter || sideOf(operand) == WindowSide::kChannel;
  }
  bool hasFilter() const { return isFilter(1); }

  void allocateTiles() {
    for (size_t i = 0; i < cluster_.operands.size(); ++i) {
      const auto operand = static_cast<int>(i);
      if (cluster_.operands[i].isOutput) {
        tiles_.push_back(allocateTile(b_, resultRows(), plan_.columns.results, memory_.vectorOf(operand)));
      } else if (isFilter(i)) {
        tiles_.push_back(allocateTile(b_, filterRows(i), filterColumns(i), memory_.vectorOf(operand)));
      } else {
        sources_.emplace_back(b_, memory_, operand, plan_, formulas_.border(operand));
        tiles_.push_back(sources_.back().tile());
      }
    }
  }

  int64_t filterRows(size_t i) const { return sideOf(i) == WindowSide::kFilter ? cluster_.window->rows.kernel : 1; }
  int64_t filterColumns(size_t i) const {
    return sideOf(i) == WindowSide::kFilter ? cluster_.window->columns.kernel : 1;
  }

  void packFilters() {
    for (size_t i = 0; i < cluster_.operands.size(); ++i) {
      if (cluster_.operands[i].isOutput || !isFilter(i)) continue;
      emitFor(at(0), at(filterRows(i)),
              [&](Val row) { memory_.pack(static_cast<int>(i), row, tiles_[i], row, {.count = filterColumns(i)}); });
    }
  }

  // --- results ---

  void emitBands() {
    const int64_t numGroups = plan_.rows.groups();
    const int64_t numBands = (numGroups + plan_.bandGroups - 1) / plan_.bandGroups;
    emitFor(at(0), at(numBands), [&](Val band) {
      Val first = band * at(plan_.bandGroups);
      Val left = at(numGroups) - first;
      Val count = select(lt(left, at(plan_.bandGroups)), left, at(plan_.bandGroups));
      const auto prepare = [&](Val loaded, Val row, Val column) { return formulas_.prepare(loaded, row, column); };
      for (SourceRows& source : sources_) {
        if (formulas_.prepares()) {
          source.pack(first, count, prepare);
        } else {
          source.pack(first, count, nullptr);
        }
      }
      emitFor(at(0), count, [&](Val group) {
        for (int64_t phase = 0; phase < plan_.rows.phases(); ++phase) emitGroupRow(first, group, phase);
      });
      if (collectsRows()) {
        Val row = first * at(plan_.rows.phases());
        Val rowsLeft = at(plan_.rows.results) - row;
        Val rowsOfBand = count * at(plan_.rows.phases());
        storeRows(row, select(lt(rowsLeft, rowsOfBand), rowsLeft, rowsOfBand));
      }
    });
  }

  // The last group may have fewer rows than there are phases.
  void emitGroupRow(Val firstGroup, Val group, int64_t phase) {
    Val row = (firstGroup + group) * at(plan_.rows.phases()) + at(phase);
    const auto emit = [&] { emitRow(row, firstGroup + group, group, phase); };
    if (phase < plan_.rows.results % plan_.rows.phases() || plan_.rows.results % plan_.rows.phases() == 0) {
      emit();
    } else {
      emitIf(lt(row, at(plan_.rows.results)), emit, [] {});
    }
  }

  // `tileGroup`: the group's place in the tile.
  void emitRow(Val row, Val group, Val tileGroup, int64_t rowPhase) {
    PixelBlock block;
    block.row = row;
    block.rowPhase = rowPhase;
    if (formulas_.isConvolution()) block.tapRows = formulas_.tapRows(group, rowPhase);
    Val resultRow = collectsRows() ? tileGroup * at(plan_.rows.phases()) + at(rowPhase) : at(0);
    emitPixelsOfRow(block, tileGroup * at(plan_.rows.step * plan_.tileColumns), resultRow * at(plan_.columns.results));
    if (!collectsRows()) storeRows(row, at(1));
  }

  // Copies the tiles of results to the rows that begin at `row`.
  void storeRows(Val row, Val count) {
    for (size_t i = 0; i < cluster_.operands.size(); ++i) {
      if (!cluster_.operands[i].isOutput) continue;
      memory_.unpack(static_cast<int>(i), {row, count, resultRows()}, tiles_[i], plan_.columns.results);
    }
  }

  int64_t rowsOfBand() const { return plan_.bandGroups * plan_.rows.phases(); }
  int64_t resultRows() const { return collectsRows() ? rowsOfBand() : 1; }

  // Whether the results of a band are copied together, because their rows are too short for vectors.
  bool collectsRows() const {
    const bool areVectors = cluster_.operands.back().columns == ClusterOperand::Columns::kContiguous;
    const bool fits = rowsOfBand() * plan_.columns.results <= kMostCollectedVectors;
    return !areVectors && fits && plan_.columns.results < WindowMemory::kFewestColumns;
  }

  // Blocks that must not read the padding have code of their own.
  void emitPixelsOfRow(PixelBlock block, Val rowPosition, Val resultRow) {
    const int64_t perBlock = formulas_.pixelsPerBlock();
    for (int64_t phase = 0; phase < plan_.columns.phases(); ++phase) {
      const int64_t numPixels = (plan_.columns.results - phase + plan_.columns.phases() - 1) / plan_.columns.phases();
      block.columnPhase = phase;
      const auto emitPixels = [&](Val firstPixel, int64_t count, std::optional<int64_t> firstGroup) {
        block.column = firstPixel * at(plan_.columns.phases()) + at(phase);
        block.count = count;
        block.resultPosition = resultRow + block.column;
        block.position = rowPosition + firstPixel * at(plan_.columns.step);
        block.firstGroup = firstGroup;
        store(block);
      };
      const int64_t numBlocks = numPixels / perBlock;
      const auto clips = [&](int64_t index) { return formulas_.clips(phase, index * perBlock, perBlock); };
      for (int64_t begin = 0; begin < numBlocks;) {
        int64_t end = begin;
        while (end < numBlocks && !clips(end)) ++end;
        if (begin == end) {
          emitPixels(at(begin * perBlock), perBlock, begin * perBlock);
          ++begin;
          continue;
        }
        emitFor(at(begin), at(end), [&](Val index) { emitPixels(index * at(perBlock), perBlock, std::nullopt); });
        begin = end;
      }
      const int64_t left = numPixels % perBlock;
      if (left > 0) emitPixels(at(numPixels - left), left, numPixels - left);
    }
  }

  void store(const PixelBlock& block) {
    const PixelValues values = formulas_.compute(block);
    size_t output = 0;
    for (size_t i = 0; i < cluster_.operands.size(); ++i) {
      if (!cluster_.operands[i].isOutput) continue;
      for (int64_t pixel = 0; pixel < block.count; ++pixel) {
        storeVector(tiles_[i], block.resultPosition, pixel * plan_.columns.phases(),
                    values[output][static_cast<size_t>(pixel)]);
      }
      ++output;
    }
  }

  ValueBuilder& b_;
  const Cluster& cluster_;
  WindowPlan plan_;
  WindowMemory memory_;
  std::vector<LaneTile> tiles_;  ///< per operand
  std::vector<SourceRows> sources_;
  WindowFormulas formulas_;
};

}  // namespace

void emitWindow(ValueBuilder& b, const Cluster& cluster, ValueRange arguments) {
  WindowEmitter(b, cluster, arguments).emit(b.wrap(arguments[2]), b.wrap(arguments[3]));
}

}  // namespace agspeed::compiler
