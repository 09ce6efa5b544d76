// SPDX-License-Identifier: Apache-2.0
#include "backends/nvptx/device_operands.h"

#include "compiler/kernel/emit/emit_types.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"

namespace agspeed::backends::nvptx {

using namespace mlir;
using namespace passes;
using compiler::Cluster;
using compiler::ClusterOperand;

namespace {

constexpr unsigned kGlobalMemory = 1;
constexpr int64_t kSlotBytes = 8;

}  // namespace

Val lanesInside(const ColumnChunk& chunk) {
  ValueBuilder& b = *chunk.first.builder;
  auto type = VectorType::get({chunk.lanes}, b.ops().getI64Type());
  SmallVector<int64_t> lanes(chunk.lanes);
  for (int lane = 0; lane < chunk.lanes; ++lane) lanes[lane] = lane;
  Val iota = b.wrap(arith::ConstantOp::create(b.ops(), b.loc(), DenseElementsAttr::get(type, ArrayRef(lanes))));
  return lt(b.splat(chunk.first, type) + iota, b.splat(chunk.end, type));
}

DeviceOperands::DeviceOperands(ValueBuilder& builder, const Cluster& cluster, Value parameter)
    : b_(builder), cluster_(cluster) {
  Type pointer = LLVM::LLVMPointerType::get(b_.ops().getContext(), kGlobalMemory);
  int rank = cluster.outerRank;
  int next = 0;
  for (size_t operand = 0; operand < cluster.operands.size(); ++operand) {
    bases_.push_back(LLVM::IntToPtrOp::create(b_.ops(), b_.loc(), pointer, integerAt(parameter, next++).value));
  }
  for (int dimension = 0; dimension < rank; ++dimension) outerSizes_.push_back(integerAt(parameter, next++));
  numColumns_ = integerAt(parameter, next++);
  for (const ClusterOperand& operand : cluster.operands) {
    std::vector<Val>& strides = outerStrides_.emplace_back();
    for (int dimension = 0; dimension < rank; ++dimension) strides.push_back(integerAt(parameter, next++));
    bool isStrided =
        operand.columns == ClusterOperand::Columns::kStrided || operand.columns == ClusterOperand::Columns::kTransposed;
    columnStrides_.push_back(isStrided ? integerAt(parameter, next) : Val());
    ++next;
  }
  if (cluster.sumsRows()) blockRows_ = integerAt(parameter, next++);
  begin_ = integerAt(parameter, next++);
  end_ = integerAt(parameter, next);
  rows_ = bases_;
}

Val DeviceOperands::integerAt(Value parameter, int index) {
  Type i64 = b_.ops().getI64Type();
  Value slot =
      LLVM::GEPOp::create(b_.ops(), b_.loc(), parameter.getType(), i64, parameter, ArrayRef<LLVM::GEPArg>{index});
  return b_.wrap(LLVM::LoadOp::create(b_.ops(), b_.loc(), i64, slot, kSlotBytes));
}

Type DeviceOperands::elementOf(int operand) const {
  return compiler::memoryType(b_.ops().getContext(), cluster_.operands[operand].dtype);
}

unsigned DeviceOperands::widthOf(int operand) const {
  return static_cast<unsigned>(sizeInBytes(cluster_.operands[operand].dtype));
}

void DeviceOperands::offsetRow(int operand, Val offset) {
  rows_[operand] = LLVM::GEPOp::create(b_.ops(), b_.loc(), bases_[operand].getType(), elementOf(operand),
                                       bases_[operand], ValueRange{offset.value});
}

void DeviceOperands::enterBlock(Val block) {
  for (size_t operand = 0; operand < bases_.size(); ++operand) {
    if (cluster_.operands[operand].isPerBlock) offsetRow(operand, block * outerStrides_[operand][0]);
  }
}

void DeviceOperands::enterRow(const std::vector<Val>& coordinates) {
  for (size_t operand = 0; operand < bases_.size(); ++operand) {
    if (coordinates.empty() || cluster_.operands[operand].isPerBlock) continue;
    Val offset = coordinates[0] * outerStrides_[operand][0];
    for (size_t dimension = 1; dimension < coordinates.size(); ++dimension) {
      offset = offset + coordinates[dimension] * outerStrides_[operand][dimension];
    }
    offsetRow(operand, offset);
  }
}

Value DeviceOperands::address(int operand, Val column) {
  if (columnStrides_[operand].value) column = column * columnStrides_[operand];
  return LLVM::GEPOp::create(b_.ops(), b_.loc(), rows_[operand].getType(), elementOf(operand), rows_[operand],
                             ValueRange{column.value});
}

// Whether the chunk is full and its address is a multiple of its size in bytes.
Val DeviceOperands::mayMoveWhole(int operand, const ColumnChunk& chunk, Value first) {
  Val number = b_.wrap(LLVM::PtrToIntOp::create(b_.ops(), b_.loc(), b_.ops().getI64Type(), first));
  Val misalignment = number & b_.like(number, static_cast<double>(widthOf(operand) * chunk.lanes - 1));
  Val isFull = le(chunk.first + static_cast<double>(chunk.lanes), chunk.end);
  return isFull & eq(misalignment, 0.0);
}

Value DeviceOperands::loadLanes(int operand, const ColumnChunk& chunk) {
  OpBuilder& ops = b_.ops();
  auto type = VectorType::get({chunk.lanes}, elementOf(operand));
  Value loaded = b_.constant(type, 0).value;
  Val last = chunk.end - 1.0;
  for (int64_t lane = 0; lane < chunk.lanes; ++lane) {
    Val column = chunk.first + static_cast<double>(lane);
    column = select(lt(column, chunk.end), column, last);
    Value element = LLVM::LoadOp::create(ops, b_.loc(), elementOf(operand), address(operand, column), widthOf(operand));
    loaded = vector::InsertOp::create(ops, b_.loc(), element, loaded, ArrayRef<int64_t>{lane});
  }
  return loaded;
}

Val DeviceOperands::load(int operand, const ColumnChunk& chunk) {
  OpBuilder& ops = b_.ops();
  Value loaded;
  if (columnStrides_[operand].value || chunk.lanes == 1) {
    loaded = loadLanes(operand, chunk);
  } else {
    auto type = VectorType::get({chunk.lanes}, elementOf(operand));
    Value first = address(operand, chunk.first);
    auto branch = scf::IfOp::create(ops, b_.loc(), TypeRange{type}, mayMoveWhole(operand, chunk, first).value,
                                    /*addThenBlock=*/true, /*addElseBlock=*/true);
    OpBuilder::InsertionGuard guard(ops);
    ops.setInsertionPointToStart(branch.thenBlock());
    Value whole = LLVM::LoadOp::create(ops, b_.loc(), type, first, widthOf(operand) * chunk.lanes);
    scf::YieldOp::create(ops, b_.loc(), whole);
    ops.setInsertionPointToStart(branch.elseBlock());
    scf::YieldOp::create(ops, b_.loc(), loadLanes(operand, chunk));
    loaded = branch.getResult(0);
  }
  return compiler::fromMemory(b_.wrap(loaded), cluster_.operands[operand].dtype);
}

void DeviceOperands::storeLanes(int operand, const ColumnChunk& chunk, Value stored) {
  OpBuilder& ops = b_.ops();
  for (int64_t lane = 0; lane < chunk.lanes; ++lane) {
    Val column = chunk.first + static_cast<double>(lane);
    auto branch = scf::IfOp::create(ops, b_.loc(), lt(column, chunk.end).value, /*withElseRegion=*/false);
    OpBuilder::InsertionGuard guard(ops);
    ops.setInsertionPointToStart(branch.thenBlock());
    Value element = vector::ExtractOp::create(ops, b_.loc(), stored, ArrayRef<int64_t>{lane});
    LLVM::StoreOp::create(ops, b_.loc(), element, address(operand, column), widthOf(operand));
  }
}

void DeviceOperands::store(int operand, const ColumnChunk& chunk, Val value) {
  OpBuilder& ops = b_.ops();
  Value stored = compiler::toMemory(value, cluster_.operands[operand].dtype).value;
  OpBuilder::InsertionGuard guard(ops);
  auto active = scf::IfOp::create(ops, b_.loc(), chunk.isActive.value, /*withElseRegion=*/false);
  ops.setInsertionPointToStart(active.thenBlock());
  if (columnStrides_[operand].value || chunk.lanes == 1) return storeLanes(operand, chunk, stored);
  Value first = address(operand, chunk.first);
  auto whole = scf::IfOp::create(ops, b_.loc(), mayMoveWhole(operand, chunk, first).value, /*withElseRegion=*/true);
  ops.setInsertionPointToStart(whole.thenBlock());
  LLVM::StoreOp::create(ops, b_.loc(), stored, first, widthOf(operand) * chunk.lanes);
  ops.setInsertionPointToStart(whole.elseBlock());
  storeLanes(operand, chunk, stored);
}

Val DeviceOperands::loadRow(int operand) {
  Value loaded = LLVM::LoadOp::create(b_.ops(), b_.loc(), elementOf(operand), rows_[operand], widthOf(operand));
  return compiler::fromMemory(b_.wrap(loaded), cluster_.operands[operand].dtype);
}

void DeviceOperands::storeRow(int operand, Val value) {
  Value stored = compiler::toMemory(value, cluster_.operands[operand].dtype).value;
  LLVM::StoreOp::create(b_.ops(), b_.loc(), stored, rows_[operand], widthOf(operand));
}

}  // namespace agspeed::backends::nvptx
