// SPDX-License-Identifier: Apache-2.0
#include "compiler/kernel/emit/window/constant_table.h"

#include <iterator>
#include <string>

#include "llvm/ADT/APFloat.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/IR/BuiltinOps.h"

namespace agspeed::compiler {

using namespace mlir;
using namespace passes;

ConstantTable::ConstantTable(ValueBuilder& b, const std::vector<int64_t>& values) {
  add(b, b.ops().getI64Type(), b.ops().getI64TensorAttr(values));
}

ConstantTable::ConstantTable(ValueBuilder& b, const std::vector<double>& values, FloatType type) {
  SmallVector<APFloat> rounded;
  for (double value : values) {
    bool losesInfo = false;
    rounded.emplace_back(value);
    rounded.back().convert(type.getFloatSemantics(), APFloat::rmNearestTiesToEven, &losesInfo);
  }
  auto shape = RankedTensorType::get({static_cast<int64_t>(values.size())}, type);
  add(b, type, DenseElementsAttr::get(shape, ArrayRef(rounded)));
}

void ConstantTable::add(ValueBuilder& b, Type element, ElementsAttr values) {
  element_ = element;
  OpBuilder& ops = b.ops();
  auto module = ops.getInsertionBlock()->getParentOp()->getParentOfType<ModuleOp>();
  Type array = LLVM::LLVMArrayType::get(element, values.getNumElements());
  auto tables = module.getOps<LLVM::GlobalOp>();
  const std::string name = "table" + std::to_string(std::distance(tables.begin(), tables.end()));
  LLVM::GlobalOp table;
  {
    OpBuilder::InsertionGuard guard(ops);
    ops.setInsertionPointToStart(module.getBody());
    table = LLVM::GlobalOp::create(ops, b.loc(), array, /*isConstant=*/true, LLVM::Linkage::Internal, name, values);
  }
  memory_ = LLVM::AddressOfOp::create(ops, b.loc(), table);
}

Val ConstantTable::at(Val index) const {
  ValueBuilder& b = *index.builder;
  Value address = LLVM::GEPOp::create(b.ops(), b.loc(), memory_.getType(), element_, memory_, ValueRange{index.value});
  return b.wrap(LLVM::LoadOp::create(b.ops(), b.loc(), element_, address));
}

}  // namespace agspeed::compiler
