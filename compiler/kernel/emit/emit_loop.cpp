// SPDX-License-Identifier: Apache-2.0
#include "compiler/kernel/emit/emit_loop.h"

#include <algorithm>
#include <limits>

#include "compiler/kernel/emit/emit_pointwise.h"
#include "compiler/kernel/emit/emit_types.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"

namespace agspeed::compiler {

using namespace mlir;
using namespace passes;

namespace {

using Accumulators = SmallVector<Value>;

class ColumnLoop {
 public:
  ColumnLoop(ValueBuilder& builder, const ColumnRange& range, const std::vector<Reduction>& reductions,
             const ColumnBody& body)
      : b_(builder), range_(range), reductions_(reductions), body_(body) {}

  std::vector<Val> emit() {
    Val lanes = b_.like(range_.begin, range_.lanes);
    Val numVectors =
        b_.wrap(arith::DivUIOp::create(b_.ops(), b_.loc(), (range_.end - range_.begin).value, lanes.value).getResult());
    Val fullEnd = range_.begin + numVectors * lanes;
    bool isBlocked = std::any_of(reductions_.begin(), reductions_.end(), [](const Reduction& r) {
      return r.op == PointwiseOp::kReduceSum && isFloat(r.dtype);
    });
    Accumulators totals =
        isBlocked ? emitBlocks(range_.begin, fullEnd, kBlockLevels) : emitVectors(range_.begin, fullEnd, neutral());
    totals = emitTail(fullEnd, totals);
    std::vector<Val> results;
    for (size_t i = 0; i < reductions_.size(); ++i) {
      results.push_back(foldLanes(reductions_[i].op, b_.wrap(totals[i]), reductions_[i].dtype));
    }
    return results;
  }

 private:
  Accumulators neutral() {
    Accumulators values;
    for (const Reduction& reduction : reductions_) {
      Type type = VectorType::get({range_.lanes}, registerType(b_.ops().getContext(), reduction.dtype));
      values.push_back(neutralElement(b_, reduction.op, type, reduction.dtype).value);
    }
    return values;
  }

  Accumulators combineAll(ValueRange accumulated, const std::vector<Val>& values) {
    Accumulators combined;
    for (size_t i = 0; i < reductions_.size(); ++i) {
      combined.push_back(combine(reductions_[i].op, b_.wrap(accumulated[i]), values[i], reductions_[i].dtype).value);
    }
    return combined;
  }

  scf::ForOp emitFor(Val begin, Val end, int64_t step, const Accumulators& initial,
                     llvm::function_ref<Accumulators(Val, ValueRange)> body) {
    Value stepValue = b_.like(begin, static_cast<double>(step)).value;
    return scf::ForOp::create(b_.ops(), b_.loc(), begin.value, end.value, stepValue, initial,
                              [&](OpBuilder& ops, Location loc, Value index, ValueRange carried) {
                                OpBuilder::InsertionGuard guard(b_.ops());
                                b_.ops().setInsertionPoint(ops.getInsertionBlock(), ops.getInsertionPoint());
                                Accumulators yielded = body(b_.wrap(index), carried);
                                scf::YieldOp::create(b_.ops(), loc, yielded);
                              });
  }

  // Full vectors in [begin, end).
  Accumulators emitVectors(Val begin, Val end, const Accumulators& initial) {
    auto loop = emitFor(begin, end, range_.lanes, initial, [&](Val index, ValueRange carried) {
      return combineAll(carried, body_({index, Val(), range_.lanes}));
    });
    return Accumulators(loop.getResults());
  }

  // Full vectors in [begin, end), accumulated in blocks; level 0 is one block.
  Accumulators emitBlocks(Val begin, Val end, int level) {
    if (level == 0) return emitVectors(begin, end, neutral());
    int64_t step = range_.lanes;
    for (int i = 0; i < level; ++i) step *= kBlockVectors;
    auto loop = emitFor(begin, end, step, neutral(), [&](Val blockBegin, ValueRange totals) {
      Val next = blockBegin + b_.like(blockBegin, static_cast<double>(step));
      Val blockEnd = select(lt(next, end), next, end);
      Accumulators block = emitBlocks(blockBegin, blockEnd, level - 1);
      std::vector<Val> values;
      for (Value value : block) values.push_back(b_.wrap(value));
      return combineAll(totals, values);
    });
    return Accumulators(loop.getResults());
  }

  // At most one masked vector.
  Accumulators emitTail(Val fullEnd, const Accumulators& totals) {
    auto ifOp = scf::IfOp::create(b_.ops(), b_.loc(), ValueRange(totals).getTypes(), lt(fullEnd, range_.end).value,
                                  /*addThenBlock=*/true, /*addElseBlock=*/true);
    OpBuilder::InsertionGuard guard(b_.ops());
    b_.ops().setInsertionPointToStart(ifOp.thenBlock());
    ColumnVector columns{fullEnd, tailMask(fullEnd), range_.lanes};
    std::vector<Val> values = body_(columns);
    for (size_t i = 0; i < values.size(); ++i) {
      Val neutralLanes = neutralElement(b_, reductions_[i].op, values[i].type(), reductions_[i].dtype);
      values[i] = select(columns.mask, values[i], neutralLanes);
    }
    scf::YieldOp::create(b_.ops(), b_.loc(), combineAll(totals, values));
    b_.ops().setInsertionPointToStart(ifOp.elseBlock());
    scf::YieldOp::create(b_.ops(), b_.loc(), totals);
    return Accumulators(ifOp.getResults());
  }

  Val tailMask(Val first) {
    OpBuilder& ops = b_.ops();
    auto type = VectorType::get({range_.lanes}, ops.getI32Type());
    SmallVector<int32_t> lanes(range_.lanes);
    for (int lane = 0; lane < range_.lanes; ++lane) lanes[lane] = lane;
    Val iota = b_.wrap(arith::ConstantOp::create(ops, b_.loc(), DenseElementsAttr::get(type, ArrayRef(lanes))));
    Val left = convertInt(range_.end - first, ops.getI32Type(), Signedness::kSigned);
    return lt(iota, b_.splat(left, type));
  }

  ValueBuilder& b_;
  const ColumnRange& range_;
  const std::vector<Reduction>& reductions_;
  const ColumnBody& body_;
};

Val neutralExtreme(ValueBuilder& b, bool isMax, Type type, DType dtype) {
  if (isFloat(dtype))
    return b.constant(type, isMax ? -std::numeric_limits<double>::infinity() : std::numeric_limits<double>::infinity());
  unsigned bits = getElementTypeOrSelf(type).getIntOrFloatBitWidth();
  bool isSigned = signednessOf(dtype) == Signedness::kSigned;
  APInt value = isMax ? (isSigned ? APInt::getSignedMinValue(bits) : APInt::getMinValue(bits))
                      : (isSigned ? APInt::getSignedMaxValue(bits) : APInt::getMaxValue(bits));
  return b.integer(type, value.getSExtValue());
}

}  // namespace

Val neutralElement(ValueBuilder& builder, PointwiseOp reduction, Type type, DType dtype) {
  if (reduction == PointwiseOp::kReduceSum) return builder.constant(type, 0);
  if (reduction == PointwiseOp::kReduceProd) return builder.constant(type, 1);
  return neutralExtreme(builder, reduction == PointwiseOp::kReduceMax, type, dtype);
}

Val combine(PointwiseOp reduction, Val accumulated, Val value, DType dtype) {
  if (reduction == PointwiseOp::kReduceSum) return accumulated + value;
  if (reduction == PointwiseOp::kReduceProd) return accumulated * value;
  return extreme(reduction == PointwiseOp::kReduceMax, accumulated, value, dtype);
}

Val foldLanes(PointwiseOp reduction, Val accumulated, DType dtype) {
  ValueBuilder& b = *accumulated.builder;
  int64_t lanes = cast<VectorType>(accumulated.type()).getDimSize(0);
  for (int64_t half = lanes / 2; half >= 1; half /= 2) {
    SmallVector<int64_t> low, high;
    for (int64_t lane = 0; lane < half; ++lane) {
      low.push_back(lane);
      high.push_back(lane + half);
    }
    Value value = accumulated.value;
    Val lowHalf = b.wrap(vector::ShuffleOp::create(b.ops(), b.loc(), value, value, low));
    Val highHalf = b.wrap(vector::ShuffleOp::create(b.ops(), b.loc(), value, value, high));
    accumulated = combine(reduction, lowHalf, highHalf, dtype);
  }
  return b.wrap(vector::ExtractOp::create(b.ops(), b.loc(), accumulated.value, ArrayRef<int64_t>{0}));
}

std::vector<Val> emitColumnLoop(ValueBuilder& builder, const ColumnRange& range,
                                const std::vector<Reduction>& reductions, const ColumnBody& body) {
  return ColumnLoop(builder, range, reductions, body).emit();
}

}  // namespace agspeed::compiler
