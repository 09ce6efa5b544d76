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
  tile_ = allocateTile(b, plan.tileRows(), plan.tileColumns, memory.vectorOf(operand));
  columns_.begin = std::max<int64_t>(plan.firstColumn, 0);
  columns_.tileBegin = columns_.begin - plan.firstColumn;
  const int64_t end = std::min(plan.columns.source, plan.firstColumn + tile_.columns);
  columns_.count = std::max<int64_t>(end - columns_.begin, 0);
}

Val SourceRows::at(int64_t value) const { return b_.integer(b_.ops().getI64Type(), value); }

void SourceRows::fill(Val begin, Val end) {
  Val value = b_.constant(tile_.vector, *border_);
  emitFor(begin, end, [&](Val position) { storeVector(tile_, position, 0, value); });
}

void SourceRows::pack(Val firstGroup, Val numGroups, llvm::function_ref<Val(Val, Val, Val)> prepare) {
  const auto clamp = [&](Val row) {
    row = select(lt(row, at(0)), at(0), row);
    return select(lt(row, at(plan_.rows.source)), row, at(plan_.rows.source));
  };
  Val firstRow = firstGroup * at(plan_.rows.step) + at(plan_.rows.first);
  Val numRows = (numGroups - at(1)) * at(plan_.rows.step) + at(plan_.rows.span);
  Val begin = clamp(firstRow);
  Val end = clamp(firstRow + numRows);
  Val columns = at(tile_.columns);
  if (border_ && plan_.rows.hasBorders()) {
    fill(at(0), (begin - firstRow) * columns);
    fill((end - firstRow) * columns, numRows * columns);
  }
  if (columns_.count > 0) {
    memory_.pack(operand_, {begin, end - begin, plan_.tileRows()}, tile_, begin - firstRow, columns_);
  }
  if (!plan_.hasTileBorders() && !prepare) return;
  emitFor(begin, end, [&](Val row) {
    Val position = (row - firstRow) * columns;
    const int64_t endInside = columns_.tileBegin + columns_.count;
    if (columns_.tileBegin > 0) fill(position, position + at(columns_.tileBegin));
    if (endInside < tile_.columns) fill(position + at(endInside), position + columns);
    if (!prepare) return;
    emitFor(at(0), at(columns_.count), [&](Val column) {
      Val inside = position + at(columns_.tileBegin) + column;
      storeVector(tile_, inside, 0, prepare(loadVector(tile_, inside), row, at(columns_.begin) + column));
    });
  });
}

}  // namespace agspeed::compiler
