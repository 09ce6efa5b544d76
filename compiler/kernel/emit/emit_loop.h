// SPDX-License-Identifier: Apache-2.0
// Column loops and the reductions they carry.
//
// A loop runs over full vectors and then once, masked, over what is left. A reduction keeps one accumulator of `lanes`
// elements: lane l holds the columns c with c % lanes == l, folded together at the end by halving (lane l with lane
// l + n/2, ...). Floating-point sums are kept in three levels: after kBlockVectors vectors the accumulator is added to
// an outer one, and that after as many blocks to a third, so that chains of additions stay short. The order depends on
// the number of columns alone, so neither slicing nor threads change a bit.
#pragma once

#include <functional>
#include <vector>

#include "compiler/graph/cluster.h"
#include "compiler/kernel/emit/emit_memory.h"
#include "passes/kernel/value_builder.h"

namespace agspeed::compiler {

constexpr int kBlockVectors = 64;
constexpr int kBlockLevels = 2;

/// The value that leaves a reduction unchanged, in the given scalar or vector type.
passes::Val neutralElement(passes::ValueBuilder& builder, PointwiseOp reduction, mlir::Type type, DType dtype);
/// One step of a reduction; max and min propagate NaN.
passes::Val combine(PointwiseOp reduction, passes::Val accumulated, passes::Val value, DType dtype);
/// All lanes of an accumulator combined to a scalar.
passes::Val foldLanes(PointwiseOp reduction, passes::Val accumulated, DType dtype);

struct Reduction {
  PointwiseOp op = PointwiseOp::kReduceSum;
  DType dtype = DType::kF32;
};

struct ColumnRange {
  passes::Val begin;  ///< i64
  passes::Val end;
  int lanes = 16;
};

/// Emits the loop body at the insertion point and returns the value that each reduction takes in, in order.
using ColumnBody = std::function<std::vector<passes::Val>(const ColumnVector&)>;

/// Emits a column loop; returns each reduction's result as a scalar.
std::vector<passes::Val> emitColumnLoop(passes::ValueBuilder& builder, const ColumnRange& range,
                                        const std::vector<Reduction>& reductions, const ColumnBody& body);

}  // namespace agspeed::compiler
