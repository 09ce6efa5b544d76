// SPDX-License-Identifier: Apache-2.0
// Column loops and the reductions they carry.
//
// A loop runs over full vectors and then once, masked, over the rest. A reduction keeps one accumulator of `lanes`
// elements: lane l holds the columns c with c % lanes == l. At the end the lanes are folded by halving (lane l with
// lane l + n/2, ...). Floating-point sums have three levels, so that chains of additions stay short: after
// kBlockVectors vectors the accumulator is added to an outer one, and after as many blocks that one to a third. The
// order depends on the number of columns alone, so neither slicing nor threads change a bit.
#pragma once

#include <functional>
#include <vector>

#include "compiler/graph/cluster.h"
#include "compiler/kernel/emit/emit_memory.h"
#include "passes/kernel/value_builder.h"

namespace agspeed::compiler {

constexpr int kBlockVectors = 64;
constexpr int kBlockLevels = 2;

/// The value that does not change a reduction, in the given scalar or vector type.
passes::Val neutralElement(passes::ValueBuilder& builder, PointwiseOp reduction, mlir::Type type, DType dtype);
/// One step of a reduction; max and min propagate NaN.
passes::Val combine(PointwiseOp reduction, passes::Val accumulated, passes::Val value, DType dtype);
/// Combines all lanes of an accumulator to a scalar.
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

/// Emits the loop body at the insertion point and returns the value to add to each reduction, in order.
using ColumnBody = std::function<std::vector<passes::Val>(const ColumnVector&)>;

/// Emits a column loop; returns each reduction's result as a scalar.
std::vector<passes::Val> emitColumnLoop(passes::ValueBuilder& builder, const ColumnRange& range,
                                        const std::vector<Reduction>& reductions, const ColumnBody& body);

}  // namespace agspeed::compiler
