// SPDX-License-Identifier: Apache-2.0
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"
#include "passes/kernel/passes.h"

namespace agspeed::passes {

#define GEN_PASS_DEF_MATHTOLIBMPASS
#include "passes/kernel/passes.h.inc"

namespace {

using namespace mlir;

struct Row {
  StringRef op;
  StringRef function;  ///< the version for double; the version for float has the suffix f
};

constexpr Row kRows[] = {
    {"math.acos", "acos"},   {"math.acosh", "acosh"}, {"math.asin", "asin"},   {"math.asinh", "asinh"},
    {"math.atan", "atan"},   {"math.atan2", "atan2"}, {"math.atanh", "atanh"}, {"math.cos", "cos"},
    {"math.cosh", "cosh"},   {"math.erf", "erf"},     {"math.erfc", "erfc"},   {"math.exp", "exp"},
    {"math.exp2", "exp2"},   {"math.expm1", "expm1"}, {"math.log", "log"},     {"math.log10", "log10"},
    {"math.log1p", "log1p"}, {"math.log2", "log2"},   {"math.powf", "pow"},    {"math.sin", "sin"},
    {"math.sinh", "sinh"},   {"math.tan", "tan"},     {"math.tanh", "tanh"},
};

const Row* rowOf(Operation* op) {
  StringRef name = op->getName().getStringRef();
  const Row* found = llvm::find_if(kRows, [&](const Row& row) { return row.op == name; });
  return found == std::end(kRows) ? nullptr : found;
}

struct MathToLibmPass : impl::MathToLibmPassBase<MathToLibmPass> {
  void runOnOperation() override {
    SmallVector<Operation*> found;
    getOperation().walk([&](Operation* op) {
      if (rowOf(op)) found.push_back(op);
    });
    for (Operation* op : found) {
      Type element = getElementTypeOrSelf(op->getResult(0).getType());
      if (!element.isF32() && !element.isF64()) {
        op->emitError("libm has no version for this element type");
        return signalPassFailure();
      }
      replace(op);
    }
  }

  void replace(Operation* op) {
    OpBuilder ops(op);
    auto vector = dyn_cast<VectorType>(op->getResult(0).getType());
    func::FuncOp callee = declare(op);
    Value result = vector ? callPerLane(ops, op, callee, vector) : call(ops, op, callee, op->getOperands());
    op->getResult(0).replaceAllUsesWith(result);
    op->erase();
  }

  Value call(OpBuilder& ops, Operation* op, func::FuncOp callee, ValueRange arguments) {
    return func::CallOp::create(ops, op->getLoc(), callee, arguments).getResult(0);
  }

  Value callPerLane(OpBuilder& ops, Operation* op, func::FuncOp callee, VectorType type) {
    Location loc = op->getLoc();
    auto index = [&](int64_t value) -> Value { return arith::ConstantIndexOp::create(ops, loc, value); };
    Value empty = arith::ConstantOp::create(ops, loc, ops.getZeroAttr(type));
    auto body = [&](OpBuilder& inner, Location, Value lane, ValueRange carried) {
      SmallVector<Value> arguments;
      for (Value operand : op->getOperands()) {
        arguments.push_back(vector::ExtractOp::create(inner, loc, operand, OpFoldResult(lane)));
      }
      Value result = call(inner, op, callee, arguments);
      scf::YieldOp::create(inner, loc,
                           Value(vector::InsertOp::create(inner, loc, result, carried[0], OpFoldResult(lane))));
    };
    return scf::ForOp::create(ops, loc, index(0), index(type.getNumElements()), index(1), empty, body).getResult(0);
  }

  // Returns the declaration of the libm function for the element type of this operation, and adds it if it is missing.
  func::FuncOp declare(Operation* op) {
    Type element = getElementTypeOrSelf(op->getResult(0).getType());
    std::string name = rowOf(op)->function.str() + (element.isF32() ? "f" : "");
    ModuleOp module = getOperation();
    if (auto existing = module.lookupSymbol<func::FuncOp>(name)) return existing;
    OpBuilder ops = OpBuilder::atBlockBegin(module.getBody());
    SmallVector<Type> inputs(op->getNumOperands(), element);
    auto function = func::FuncOp::create(ops, op->getLoc(), name, ops.getFunctionType(inputs, {element}));
    function.setPrivate();
    return function;
  }
};

}  // namespace
}  // namespace agspeed::passes
