// SPDX-License-Identifier: Apache-2.0
#include "compiler/kernel/emit/emit_memory.h"

#include "compiler/kernel/emit/emit_types.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"

namespace agspeed::compiler {

using namespace mlir;
using namespace passes;

OperandAccess::OperandAccess(ValueBuilder& builder, const Cluster& cluster, int lanes, Value pointers, Value integers)
    : b_(builder), cluster_(cluster) {
  OpBuilder& ops = b_.ops();
  Type pointer = LLVM::LLVMPointerType::get(ops.getContext());
  int rank = cluster.outerRank;
  int next = 0;
  for (int dimension = 0; dimension < rank; ++dimension) outerSizes_.push_back(integerAt(integers, next++));
  numColumns_ = integerAt(integers, next++);
  for (size_t operand = 0; operand < cluster.operands.size(); ++operand) {
    Value slot = LLVM::GEPOp::create(ops, b_.loc(), pointer, pointer, pointers,
                                     ArrayRef<LLVM::GEPArg>{static_cast<int32_t>(operand)});
    bases_.push_back(LLVM::LoadOp::create(ops, b_.loc(), pointer, slot));
    std::vector<Val>& strides = outerStrides_.emplace_back();
    for (int dimension = 0; dimension < rank; ++dimension) strides.push_back(integerAt(integers, next++));
    bool isStrided = cluster.operands[operand].columns == ClusterOperand::Columns::kStrided;
    columnStrides_.push_back(isStrided ? integerAt(integers, next) : Val());
    if (cluster.operands[operand].columns == ClusterOperand::Columns::kTransposed) {
      const auto index = static_cast<int>(operand);
      transposed_.push_back(
          {index, integerAt(integers, next), allocateRowTile(b_, elementOf(index), lanes, numColumns_), {}});
    }
    ++next;
  }
  if (cluster.sumsRows()) blockRows_ = integerAt(integers, next);
  rows_ = bases_;
}

Val OperandAccess::integerAt(Value integers, int index) {
  OpBuilder& ops = b_.ops();
  Type i64 = ops.getI64Type();
  Value slot = LLVM::GEPOp::create(ops, b_.loc(), integers.getType(), i64, integers, ArrayRef<LLVM::GEPArg>{index});
  return b_.wrap(LLVM::LoadOp::create(ops, b_.loc(), i64, slot));
}

Type OperandAccess::elementOf(int operand) const {
  return memoryType(b_.ops().getContext(), cluster_.operands[operand].dtype);
}

unsigned OperandAccess::alignmentOf(int operand) const {
  return static_cast<unsigned>(sizeInBytes(cluster_.operands[operand].dtype));
}

void OperandAccess::enterBlock(Val block) {
  for (size_t operand = 0; operand < bases_.size(); ++operand) {
    if (!cluster_.operands[operand].isPerBlock) continue;
    Val offset = block * outerStrides_[operand][0];
    rows_[operand] = LLVM::GEPOp::create(b_.ops(), b_.loc(), bases_[operand].getType(), elementOf(operand),
                                         bases_[operand], ValueRange{offset.value});
  }
}

void OperandAccess::enterRow(const std::vector<Val>& coordinates) {
  for (size_t operand = 0; operand < bases_.size(); ++operand) {
    const bool isTransposed = cluster_.operands[operand].columns == ClusterOperand::Columns::kTransposed;
    if (coordinates.empty() || isTransposed || cluster_.operands[operand].isPerBlock) continue;
    rows_[operand] = addressOf(static_cast<int>(operand), coordinates);
  }
}

Value OperandAccess::addressOf(int operand, const std::vector<Val>& coordinates) {
  Val offset = coordinates[0] * outerStrides_[operand][0];
  for (size_t dimension = 1; dimension < coordinates.size(); ++dimension) {
    offset = offset + coordinates[dimension] * outerStrides_[operand][dimension];
  }
  return LLVM::GEPOp::create(b_.ops(), b_.loc(), bases_[operand].getType(), elementOf(operand), bases_[operand],
                             ValueRange{offset.value});
}

void OperandAccess::enterTile(const std::vector<Val>& coordinates, Val numRows) {
  tileCoordinates_ = coordinates;
  tileRows_ = numRows;
  for (Transposed& each : transposed_) {
    each.memory = addressOf(each.operand, coordinates);
    if (!cluster_.operands[each.operand].isOutput) {
      packRows(each.tile, {each.memory, each.columnStride, numRows, numColumns_});
    }
  }
}

void OperandAccess::enterRowOfTile(Val row) {
  std::vector<Val> coordinates = tileCoordinates_;
  coordinates.back() = coordinates.back() + row;
  enterRow(coordinates);
  for (const Transposed& each : transposed_) rows_[each.operand] = rowOf(each.tile, row);
}

void OperandAccess::leaveTile() {
  for (const Transposed& each : transposed_) {
    if (!cluster_.operands[each.operand].isOutput) continue;
    unpackRows(each.tile, {each.memory, each.columnStride, tileRows_, numColumns_});
  }
}

Value OperandAccess::address(int operand, Value index) {
  return LLVM::GEPOp::create(b_.ops(), b_.loc(), rows_[operand].getType(), elementOf(operand), rows_[operand],
                             ValueRange{index});
}

Value OperandAccess::laneAddresses(int operand, const ColumnVector& columns) {
  OpBuilder& ops = b_.ops();
  auto indexType = VectorType::get({columns.lanes}, ops.getI64Type());
  SmallVector<int64_t> lanes(columns.lanes);
  for (int lane = 0; lane < columns.lanes; ++lane) lanes[lane] = lane;
  Val iota = b_.wrap(arith::ConstantOp::create(ops, b_.loc(), DenseElementsAttr::get(indexType, ArrayRef(lanes))));
  Val stride = columnStrides_[operand];
  Val offsets = b_.splat(columns.first * stride, indexType) + iota * b_.splat(stride, indexType);
  auto addresses = VectorType::get({columns.lanes}, rows_[operand].getType());
  return LLVM::GEPOp::create(ops, b_.loc(), addresses, elementOf(operand), rows_[operand], ValueRange{offsets.value});
}

Val OperandAccess::load(int operand, const ColumnVector& columns) {
  OpBuilder& ops = b_.ops();
  auto type = VectorType::get({columns.lanes}, elementOf(operand));
  unsigned alignment = alignmentOf(operand);
  Value loaded;
  if (columnStrides_[operand].value) {
    auto maskType = VectorType::get({columns.lanes}, ops.getI1Type());
    Value mask = columns.mask.value ? columns.mask.value : b_.integer(maskType, 1).value;
    Value zero = b_.constant(type, 0).value;
    loaded = LLVM::masked_gather::create(ops, b_.loc(), type, laneAddresses(operand, columns), mask, ValueRange{zero},
                                         alignment);
  } else if (columns.mask.value) {
    loaded = LLVM::MaskedLoadOp::create(ops, b_.loc(), type, address(operand, columns.first.value), columns.mask.value,
                                        b_.constant(type, 0).value, ops.getI32IntegerAttr(alignment));
  } else {
    loaded = LLVM::LoadOp::create(ops, b_.loc(), type, address(operand, columns.first.value), alignment);
  }
  return fromMemory(b_.wrap(loaded), cluster_.operands[operand].dtype);
}

void OperandAccess::store(int operand, const ColumnVector& columns, Val value) {
  OpBuilder& ops = b_.ops();
  Value stored = toMemory(value, cluster_.operands[operand].dtype).value;
  unsigned alignment = alignmentOf(operand);
  if (columnStrides_[operand].value) {
    auto maskType = VectorType::get({columns.lanes}, ops.getI1Type());
    Value mask = columns.mask.value ? columns.mask.value : b_.integer(maskType, 1).value;
    LLVM::masked_scatter::create(ops, b_.loc(), stored, laneAddresses(operand, columns), mask,
                                 ops.getI32IntegerAttr(alignment));
  } else if (columns.mask.value) {
    LLVM::MaskedStoreOp::create(ops, b_.loc(), stored, address(operand, columns.first.value), columns.mask.value,
                                ops.getI32IntegerAttr(alignment));
  } else {
    LLVM::StoreOp::create(ops, b_.loc(), stored, address(operand, columns.first.value), alignment);
  }
}

Val OperandAccess::loadRow(int operand) {
  Value loaded = LLVM::LoadOp::create(b_.ops(), b_.loc(), elementOf(operand), rows_[operand], alignmentOf(operand));
  return fromMemory(b_.wrap(loaded), cluster_.operands[operand].dtype);
}

void OperandAccess::storeRow(int operand, Val value) {
  Value stored = toMemory(value, cluster_.operands[operand].dtype).value;
  LLVM::StoreOp::create(b_.ops(), b_.loc(), stored, rows_[operand], alignmentOf(operand));
}

}  // namespace agspeed::compiler
