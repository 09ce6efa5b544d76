// SPDX-License-Identifier: Apache-2.0
#include "backends/nvptx/column_pass.h"

#include "compiler/kernel/emit/emit_types.h"
#include "mlir/Dialect/SCF/IR/SCF.h"

namespace agspeed::backends::nvptx {

using namespace mlir;
using namespace passes;
using compiler::Reduction;

ColumnPass ColumnPass::ofChunk(ValueBuilder& builder, const ColumnChunk& chunk) {
  ColumnPass pass(builder, chunk.lanes);
  pass.chunks_ = {chunk};
  return pass;
}

ColumnPass ColumnPass::ofGroup(ValueBuilder& builder, const ThreadGroup& group, Val numColumns, int lanes,
                               int numChunks) {
  ColumnPass pass(builder, lanes);
  pass.isLoop_ = numChunks == 0;
  for (int i = 0; i < std::max(1, numChunks); ++i) {
    Val chunk = group.rank() + group.size() * static_cast<double>(i);
    pass.chunks_.push_back({chunk * static_cast<double>(lanes), numColumns, Val(), lanes});
  }
  pass.step_ = group.size() * static_cast<double>(lanes);
  return pass;
}

ColumnPass::Accumulators ColumnPass::neutral(const std::vector<Reduction>& reductions) {
  Accumulators values;
  for (const Reduction& reduction : reductions) {
    Type type = VectorType::get({lanes_}, compiler::registerType(b_->ops().getContext(), reduction.dtype));
    values.push_back(compiler::neutralElement(*b_, reduction.op, type, reduction.dtype).value);
  }
  return values;
}

// Columns beyond the end of the row contribute the neutral element.
ColumnPass::Accumulators ColumnPass::emitChunk(const std::vector<Reduction>& reductions, const ColumnChunk& chunk,
                                               int place, ValueRange accumulated, const Body& body) {
  std::vector<Val> values = body(chunk, place);
  Accumulators combined;
  if (reductions.empty()) return combined;
  Val isInside = lanesInside(chunk);
  for (size_t i = 0; i < reductions.size(); ++i) {
    Val neutralLanes = compiler::neutralElement(*b_, reductions[i].op, values[i].type(), reductions[i].dtype);
    Val value = select(isInside, values[i], neutralLanes);
    combined.push_back(compiler::combine(reductions[i].op, b_->wrap(accumulated[i]), value, reductions[i].dtype).value);
  }
  return combined;
}

ColumnPass::Accumulators ColumnPass::emitLoop(const std::vector<Reduction>& reductions, Val isActive,
                                              const Body& body) {
  ColumnChunk chunk = chunks_.front();
  chunk.isActive = isActive;
  auto loop =
      scf::ForOp::create(b_->ops(), b_->loc(), chunk.first.value, chunk.end.value, step_.value, neutral(reductions),
                         [&](OpBuilder& ops, Location loc, Value index, ValueRange carried) {
                           OpBuilder::InsertionGuard guard(b_->ops());
                           b_->ops().setInsertionPoint(ops.getInsertionBlock(), ops.getInsertionPoint());
                           chunk.first = b_->wrap(index);
                           scf::YieldOp::create(b_->ops(), loc, emitChunk(reductions, chunk, 0, carried, body));
                         });
  return Accumulators(loop.getResults());
}

std::vector<Val> ColumnPass::forEach(const std::vector<Reduction>& reductions, Val isActive, const Body& body) {
  Accumulators totals;
  if (isLoop_) {
    totals = emitLoop(reductions, isActive, body);
  } else {
    totals = neutral(reductions);
    for (size_t i = 0; i < chunks_.size(); ++i) {
      ColumnChunk chunk = chunks_[i];
      chunk.isActive = isActive;
      totals = emitChunk(reductions, chunk, static_cast<int>(i), totals, body);
    }
  }
  std::vector<Val> results;
  for (size_t i = 0; i < reductions.size(); ++i) {
    results.push_back(compiler::foldLanes(reductions[i].op, b_->wrap(totals[i]), reductions[i].dtype));
  }
  return results;
}

}  // namespace agspeed::backends::nvptx
