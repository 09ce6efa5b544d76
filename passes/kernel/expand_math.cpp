// SPDX-License-Identifier: Apache-2.0
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"
#include "passes/kernel/passes.h"
#include "passes/kernel/vector_math.h"

namespace agspeed::passes {

#define GEN_PASS_DEF_EXPANDMATHPASS
#include "passes/kernel/passes.h.inc"

namespace {

using namespace mlir;

using Unary = Val (*)(Val);
using Binary = Val (*)(Val, Val);

// The formulas of one operation. A null formula leaves the operation to math-to-libm.
struct UnaryRow {
  StringRef op;
  Unary f32;
  Unary f64;
};

constexpr UnaryRow kUnaryRows[] = {
    {"math.acos", inF64<expandAcos>, nullptr},
    {"math.acosh", inF64<expandAcosh>, nullptr},
    {"math.asin", inF64<expandAsin>, nullptr},
    {"math.asinh", inF64<expandAsinh>, nullptr},
    {"math.atan", inF64<expandAtan>, nullptr},
    {"math.atanh", inF64<expandAtanh>, nullptr},
    {"math.cos", expandCos, nullptr},
    {"math.cosh", inF64<expandCosh>, nullptr},
    {"math.erf", expandErf, nullptr},
    {"math.erfc", inF64<expandErfc>, nullptr},
    {"math.exp", expandExp, expandExp},
    {"math.exp2", expandExp2, nullptr},
    {"math.expm1", expandExpm1, expandExpm1},
    {"math.log", expandLog, expandLog},
    {"math.log10", inF64<expandLog10>, nullptr},
    {"math.log1p", expandLog1p, expandLog1p},
    {"math.log2", inF64<expandLog2>, nullptr},
    {"math.sin", expandSin, nullptr},
    {"math.sinh", inF64<expandSinh>, nullptr},
    {"math.tan", expandTan, nullptr},
    {"math.tanh", expandTanh, expandTanh},
};

struct BinaryRow {
  StringRef op;
  Binary f32;
};

constexpr BinaryRow kBinaryRows[] = {
    {"math.atan2", expandAtan2},
    {"math.powf", expandPow},
};

template <typename Rows>
auto* rowOf(const Rows& rows, Operation* op) {
  StringRef name = op->getName().getStringRef();
  auto* found = llvm::find_if(rows, [&](const auto& row) { return row.op == name; });
  return found == std::end(rows) ? nullptr : found;
}

struct ExpandMathPass : impl::ExpandMathPassBase<ExpandMathPass> {
  void runOnOperation() override {
    // Collects all operations before it expands any, because a formula may emit the operation that it replaces.
    // Example: the formula of sin leaves large arguments to a math.sin in a rarely taken branch, which calls libm in
    // the end.
    SmallVector<Operation*> found;
    getOperation().walk([&](Operation* op) { found.push_back(op); });
    for (Operation* op : found) {
      if (op->getNumResults() == 1) expand(op);
    }
  }

  void expand(Operation* op) {
    Type element = getElementTypeOrSelf(op->getResult(0).getType());
    if (!element.isF32() && !element.isF64()) return;
    OpBuilder ops(op);
    ValueBuilder builder(ops, op->getLoc());
    Value result;
    if (auto* row = rowOf(kUnaryRows, op)) {
      Unary formula = element.isF32() ? row->f32 : row->f64;
      if (formula) result = formula(builder.wrap(op->getOperand(0))).value;
    } else if (auto* row = rowOf(kBinaryRows, op); row && element.isF32()) {
      result = row->f32(builder.wrap(op->getOperand(0)), builder.wrap(op->getOperand(1))).value;
    }
    if (!result) return;
    op->getResult(0).replaceAllUsesWith(result);
    op->erase();
  }
};

}  // namespace
}  // namespace agspeed::passes
