// SPDX-License-Identifier: Apache-2.0
#include "compiler/kernel/emit/window/source_rows.h"

#include <algorithm>

#include "compiler/kernel/emit/window/control_flow.h"

namespace agspeed::compiler {

using namespace mlir;
using namespace passes;

SourceRows::SourceRows(ValueBuilder& b, WindowMemory& memory, int operand, const WindowPlan& plan,
                       std::optional<double> border)
    : b_(b), memory_(memory), operand_(operand), plan_(plan), border_(border) {
  tile_ = allocateTile(b, plan.tileRows(), plan.tileColumns(), memory.vectorOf(operand));
  columns_.begin = std::max<int64_t>(plan.columns.first, 0);
  columns_.tileBegin = columns_.begin - plan.columns.first;
  const int64_t end = std::min(plan.columns.source, plan.columns.first + tile_.columns);
  columns_.count = std::max<int64_t>(end - columns_.begin, 0);
}

Val SourceRows::at(int64_t value) const { return b_.integer(b_.ops().getI64Type(), value); }

void SourceRows::fill(Val tileRow, int64_t begin, int64_t end) {
  if (!border_ || begin >= end) return;
  Val value = b_.constant(tile_.vector, *border_);
  emitFor(at(begin), at(end), [&](Val column) { storeVector(tile_, tileRow * at(tile_.columns) + column, 0, value); });
}

void SourceRows::pack(Val firstGroup, Val numGroups, llvm::function_ref<Val(Val, Val, Val)> prepare) {
  Val numRows = (numGroups - at(1)) * at(plan_.rows.step) + at(plan_.rows.span);
  Val firstRow = firstGroup * at(plan_.rows.step) + at(plan_.rows.first);
  const int64_t end = columns_.tileBegin + columns_.count;
  emitFor(at(0), numRows, [&](Val tileRow) {
    Val row = firstRow + tileRow;
    Val isInside = lt(row, at(plan_.rows.source), Signedness::kUnsigned);
    const auto copy = [&] {
      fill(tileRow, 0, columns_.tileBegin);
      memory_.pack(operand_, row, tile_, tileRow, columns_);
      fill(tileRow, end, tile_.columns);
      if (!prepare) return;
      emitFor(at(0), at(columns_.count), [&](Val column) {
        Val position = tileRow * at(tile_.columns) + at(columns_.tileBegin) + column;
        storeVector(tile_, position, 0, prepare(loadVector(tile_, position), row, at(columns_.begin) + column));
      });
    };
    const auto leaveOut = [&] { fill(tileRow, 0, tile_.columns); };
    if (columns_.count > 0) {
      emitIf(isInside, copy, leaveOut);
    } else {
      leaveOut();
    }
  });
}

}  // namespace agspeed::compiler
