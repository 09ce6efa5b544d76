// SPDX-License-Identifier: Apache-2.0
#include "compiler/kernel/emit/window/control_flow.h"

#include "mlir/Dialect/SCF/IR/SCF.h"

namespace agspeed::compiler {

using namespace mlir;
using namespace passes;

std::vector<Val> emitFor(Val begin, Val end, const std::vector<Val>& initial,
                         llvm::function_ref<std::vector<Val>(Val, const std::vector<Val>&)> body) {
  ValueBuilder& b = *begin.builder;
  const auto wrapAll = [&](ValueRange values) {
    std::vector<Val> wrapped;
    for (Value value : values) wrapped.push_back(b.wrap(value));
    return wrapped;
  };
  SmallVector<Value> first;
  for (const Val& value : initial) first.push_back(value.value);
  auto loop = scf::ForOp::create(b.ops(), b.loc(), begin.value, end.value, b.like(begin, 1).value, first,
                                 [&](OpBuilder& ops, Location loc, Value index, ValueRange carried) {
                                   OpBuilder::InsertionGuard guard(b.ops());
                                   b.ops().setInsertionPoint(ops.getInsertionBlock(), ops.getInsertionPoint());
                                   SmallVector<Value> next;
                                   for (const Val& value : body(b.wrap(index), wrapAll(carried))) {
                                     next.push_back(value.value);
                                   }
                                   scf::YieldOp::create(b.ops(), loc, next);
                                 });
  return wrapAll(loop.getResults());
}

void emitFor(Val begin, Val end, llvm::function_ref<void(Val)> body) {
  emitFor(begin, end, {}, [&](Val index, const std::vector<Val>&) {
    body(index);
    return std::vector<Val>();
  });
}

void emitIf(Val condition, llvm::function_ref<void()> whenTrue, llvm::function_ref<void()> whenFalse) {
  ValueBuilder& b = *condition.builder;
  const auto branch = [&](llvm::function_ref<void()> body) {
    return [&b, body](OpBuilder& ops, Location loc) {
      OpBuilder::InsertionGuard guard(b.ops());
      b.ops().setInsertionPoint(ops.getInsertionBlock(), ops.getInsertionPoint());
      body();
      scf::YieldOp::create(b.ops(), loc);
    };
  };
  scf::IfOp::create(b.ops(), b.loc(), condition.value, branch(whenTrue), branch(whenFalse));
}

}  // namespace agspeed::compiler
