// SPDX-License-Identifier: Apache-2.0
#include "compiler/kernel/emit/window/window_memory.h"

#include <algorithm>
#include <bit>

#include "compiler/kernel/emit/emit_types.h"
#include "compiler/kernel/emit/window/control_flow.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"

namespace agspeed::compiler {

using namespace mlir;
using namespace passes;

namespace {

constexpr int kNumSizes = 4;

// The width of the blocks of columns that are transposed in registers; 0: the run is too short. The widest blocks are
// slow where they cross the lines of the cache.
int64_t blockWidth(int64_t columnsOfRow, int64_t columnsOfRun, int64_t lanes) {
  const int64_t widest = columnsOfRow % lanes == 0 ? lanes : lanes / 2;
  const auto width = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(std::min(columnsOfRun, widest))));
  return width < WindowMemory::kFewestColumns ? 0 : width;
}

}  // namespace

WindowMemory::WindowMemory(ValueBuilder& b, const Cluster& cluster, Value pointers, Value integers)
    : b_(b), cluster_(cluster), lanes_(windowLanes(cluster.operands[0].dtype)) {
  OpBuilder& ops = b_.ops();
  Type pointer = LLVM::LLVMPointerType::get(ops.getContext());
  Type i64 = ops.getI64Type();
  const auto integerAt = [&](int32_t index) {
    Value slot = LLVM::GEPOp::create(ops, b_.loc(), pointer, i64, integers, ArrayRef<LLVM::GEPArg>{index});
    return b_.wrap(LLVM::LoadOp::create(ops, b_.loc(), i64, slot));
  };
  numImages_ = integerAt(0);
  numChannels_ = integerAt(kNumSizes - 1);
  int32_t next = kNumSizes;
  for (size_t operand = 0; operand < cluster.operands.size(); ++operand) {
    Value slot = LLVM::GEPOp::create(ops, b_.loc(), pointer, pointer, pointers,
                                     ArrayRef<LLVM::GEPArg>{static_cast<int32_t>(operand)});
    pointers_.push_back(LLVM::LoadOp::create(ops, b_.loc(), pointer, slot));
    std::vector<Val>& strides = strides_.emplace_back();
    for (int dimension = 0; dimension < kNumSizes; ++dimension) strides.push_back(integerAt(next++));
  }
  bases_ = pointers_;
}

Val WindowMemory::at(int64_t value) const { return b_.integer(b_.ops().getI64Type(), value); }

Type WindowMemory::memoryTypeOf(int operand) const {
  return memoryType(b_.ops().getContext(), cluster_.operands[operand].dtype);
}

unsigned WindowMemory::alignmentOf(int operand) const {
  return static_cast<unsigned>(sizeInBytes(cluster_.operands[operand].dtype));
}

VectorType WindowMemory::vectorOf(int operand) const {
  const DType dtype = cluster_.operands[operand].dtype;
  Type element = dtype == DType::kI64 ? b_.ops().getI32Type() : registerType(b_.ops().getContext(), dtype);
  return VectorType::get({lanes_}, element);
}

Val WindowMemory::toTile(int operand, Value loaded) const {
  const DType dtype = cluster_.operands[operand].dtype;
  Val value = fromMemory(b_.wrap(loaded), dtype);
  return dtype == DType::kI64 ? convertInt(value, b_.ops().getI32Type(), Signedness::kSigned) : value;
}

Value WindowMemory::fromTile(int operand, Val value) const {
  const DType dtype = cluster_.operands[operand].dtype;
  if (dtype == DType::kI64) value = convertInt(value, b_.ops().getI64Type(), Signedness::kSigned);
  return toMemory(value, dtype).value;
}

void WindowMemory::forEachUnit(Val begin, Val end, bool isChannelsLast, llvm::function_ref<void(Val, Val)> body) {
  const auto divide = [&](Val a, Val c) {
    return b_.wrap(arith::DivUIOp::create(b_.ops(), b_.loc(), a.value, c.value).getResult());
  };
  Val numBlocks = divide(numChannels_ + at(lanes_ - 1), at(lanes_));
  emitFor(begin, end, [&](Val unit) {
    Val numInner = isChannelsLast ? numBlocks : numImages_;
    Val outer = divide(unit, numInner);
    Val inner = unit - outer * numInner;
    enter(isChannelsLast ? outer : inner, (isChannelsLast ? inner : outer) * at(lanes_));
    body(unit, inner);
  });
}

void WindowMemory::enter(Val image, Val channel) {
  OpBuilder& ops = b_.ops();
  Val left = numChannels_ - channel;
  Val lanes = at(lanes_);
  isFull_ = ge(left, lanes);
  numLanes_ = select(isFull_, lanes, left);
  auto indexType = VectorType::get({lanes_}, ops.getI32Type());
  SmallVector<int32_t> iota;
  for (int64_t lane = 0; lane < lanes_; ++lane) iota.push_back(static_cast<int32_t>(lane));
  Val indices = b_.wrap(arith::ConstantOp::create(ops, b_.loc(), DenseElementsAttr::get(indexType, ArrayRef(iota))));
  mask_ = lt(indices, b_.splat(convertInt(numLanes_, ops.getI32Type(), Signedness::kSigned), indexType));
  for (size_t operand = 0; operand < pointers_.size(); ++operand) {
    Val offset = image * strides_[operand][0] + channel * strides_[operand][3];
    bases_[operand] =
        LLVM::GEPOp::create(ops, b_.loc(), pointers_[operand].getType(), memoryTypeOf(static_cast<int>(operand)),
                            pointers_[operand], ValueRange{offset.value});
  }
}

// The rows are one run if they follow each other in the tile and in memory.
void WindowMemory::forEachRun(int operand, const RowRange& rows, const LaneTile& tile, Val tileRow,
                              const TileColumns& columns, llvm::function_ref<void(const Row&)> body) {
  const std::vector<Val>& strides = strides_[operand];
  const auto rowAt = [&](Val row, Val numColumns, int64_t mostColumns) {
    Val offset = (rows.begin + row) * strides[1] + at(columns.begin) * strides[2];
    Value memory = LLVM::GEPOp::create(b_.ops(), b_.loc(), bases_[operand].getType(), memoryTypeOf(operand),
                                       bases_[operand], ValueRange{offset.value});
    Val position = (tileRow + row) * at(tile.columns) + at(columns.tileBegin);
    return Row{operand, memory, tile, position, numColumns, blockWidth(columns.count, mostColumns, lanes_)};
  };
  if (rows.most == 1 || columns.count != tile.columns) {
    return emitFor(at(0), rows.count, [&](Val row) { body(rowAt(row, at(columns.count), columns.count)); });
  }
  Val areOne = eq(strides[1], at(columns.count) * strides[2]);
  Val numRuns = select(areOne, at(1), rows.count);
  Val numColumns = select(areOne, rows.count * at(columns.count), at(columns.count));
  emitFor(at(0), numRuns, [&](Val row) { body(rowAt(row, numColumns, rows.most * columns.count)); });
}

Value WindowMemory::element(const Row& row, Val offset) const {
  return LLVM::GEPOp::create(b_.ops(), b_.loc(), row.memory.getType(), memoryTypeOf(row.operand), row.memory,
                             ValueRange{offset.value});
}

void WindowMemory::forEachVector(const Row& row, llvm::function_ref<void(Val, Value)> body) {
  Val stride = strides_[row.operand][2];
  emitFor(at(0), row.numColumns, [&](Val column) { body(row.position + column, element(row, column * stride)); });
}

// Lanes without a channel stand for the last channel. They are loaded, too, because numbers that happen to be in memory
// may be slow to compute with.
Val WindowMemory::laneOffset(int operand, Val lane, bool isFull) const {
  Val last = numLanes_ - at(1);
  return (isFull ? lane : select(lt(lane, last), lane, last)) * strides_[operand][3];
}

void WindowMemory::forEachElement(const Row& row, Val numLanes, llvm::function_ref<void(Val, Val, Value)> body) {
  Val stride = strides_[row.operand][2];
  emitFor(at(0), numLanes, [&](Val lane) {
    Val first = laneOffset(row.operand, lane, /*isFull=*/false);
    emitFor(at(0), row.numColumns,
            [&](Val column) { body(row.position + column, lane, element(row, first + column * stride)); });
  });
}

// The last block overlaps the one before it if the width does not divide the row.
void WindowMemory::forEachBlock(const Row& row, llvm::function_ref<void(Val)> body) {
  const int64_t width = row.blockWidth;
  Val last = row.numColumns - at(width);
  Val numBlocks = b_.wrap(
      arith::DivUIOp::create(b_.ops(), b_.loc(), (row.numColumns + at(width - 1)).value, at(width).value).getResult());
  emitFor(at(0), numBlocks, [&](Val block) {
    Val column = block * at(width);
    body(select(lt(column, last), column, last));
  });
}

void WindowMemory::packBlock(const Row& row, Val column, bool isFull) {
  auto type = VectorType::get({row.blockWidth}, memoryTypeOf(row.operand));
  std::vector<Val> rows;
  for (int64_t lane = 0; lane < lanes_; ++lane) {
    Value address = element(row, column + laneOffset(row.operand, at(lane), isFull));
    Value loaded = LLVM::LoadOp::create(b_.ops(), b_.loc(), type, address, alignmentOf(row.operand));
    rows.push_back(toTile(row.operand, loaded));
  }
  std::vector<Val> vectors = rowsToLanes(std::move(rows));
  for (int64_t i = 0; i < row.blockWidth; ++i) {
    storeVector(row.tile, row.position + column, i, vectors[static_cast<size_t>(i)]);
  }
}

// The last channel is stored after the lanes that stand for it.
void WindowMemory::unpackBlock(const Row& row, Val column, bool isFull) {
  std::vector<Val> vectors;
  for (int64_t i = 0; i < row.blockWidth; ++i) vectors.push_back(loadVector(row.tile, row.position + column, i));
  std::vector<Val> rows = lanesToRows(std::move(vectors));
  for (int64_t lane = lanes_ - 1; lane >= 0; --lane) {
    Value address = element(row, column + laneOffset(row.operand, at(lane), isFull));
    LLVM::StoreOp::create(b_.ops(), b_.loc(), fromTile(row.operand, rows[static_cast<size_t>(lane)]), address,
                          alignmentOf(row.operand));
  }
}

void WindowMemory::packRow(const Row& row) {
  OpBuilder& ops = b_.ops();
  auto type = VectorType::get({lanes_}, memoryTypeOf(row.operand));
  const unsigned alignment = alignmentOf(row.operand);
  const auto elements = [&] {
    forEachElement(row, at(lanes_), [&](Val position, Val lane, Value memory) {
      Value loaded = LLVM::LoadOp::create(ops, b_.loc(), memoryTypeOf(row.operand), memory, alignment);
      storeLane(row.tile, position, lane, toTile(row.operand, loaded));
    });
  };
  if (cluster_.operands[row.operand].columns == ClusterOperand::Columns::kContiguous) {
    const auto full = [&](Val position, Value memory) {
      Value loaded = LLVM::LoadOp::create(ops, b_.loc(), type, memory, alignment);
      storeVector(row.tile, position, 0, toTile(row.operand, loaded));
    };
    const auto masked = [&](Val position, Value memory) {
      Value loaded = LLVM::MaskedLoadOp::create(ops, b_.loc(), type, memory, mask_.value, b_.constant(type, 0).value,
                                                ops.getI32IntegerAttr(static_cast<int32_t>(alignment)));
      storeVector(row.tile, position, 0, toTile(row.operand, loaded));
    };
    emitIf(isFull_, [&] { forEachVector(row, full); }, [&] { forEachVector(row, masked); });
  } else if (row.blockWidth > 0) {
    const auto blocks = [&](bool isFull) {
      return [&, isFull] { forEachBlock(row, [&](Val column) { packBlock(row, column, isFull); }); };
    };
    emitIf(hasBlocks(row), [&] { emitIf(isFull_, blocks(true), blocks(false)); }, elements);
  } else {
    elements();
  }
}

void WindowMemory::unpackRow(const Row& row) {
  OpBuilder& ops = b_.ops();
  const unsigned alignment = alignmentOf(row.operand);
  const auto elements = [&] {
    forEachElement(row, numLanes_, [&](Val position, Val lane, Value memory) {
      Value stored = fromTile(row.operand, loadLane(row.tile, position, lane));
      LLVM::StoreOp::create(ops, b_.loc(), stored, memory, alignment);
    });
  };
  if (cluster_.operands[row.operand].columns == ClusterOperand::Columns::kContiguous) {
    const auto full = [&](Val position, Value memory) {
      LLVM::StoreOp::create(ops, b_.loc(), fromTile(row.operand, loadVector(row.tile, position)), memory, alignment);
    };
    const auto masked = [&](Val position, Value memory) {
      LLVM::MaskedStoreOp::create(ops, b_.loc(), fromTile(row.operand, loadVector(row.tile, position)), memory,
                                  mask_.value, ops.getI32IntegerAttr(static_cast<int32_t>(alignment)));
    };
    emitIf(isFull_, [&] { forEachVector(row, full); }, [&] { forEachVector(row, masked); });
  } else if (row.blockWidth > 0) {
    const auto blocks = [&](bool isFull) {
      return [&, isFull] { forEachBlock(row, [&](Val column) { unpackBlock(row, column, isFull); }); };
    };
    emitIf(hasBlocks(row), [&] { emitIf(isFull_, blocks(true), blocks(false)); }, elements);
  } else {
    elements();
  }
}

Val WindowMemory::hasBlocks(const Row& row) const {
  return eq(strides_[row.operand][2], at(1)) & ge(row.numColumns, at(row.blockWidth));
}

void WindowMemory::pack(int operand, const RowRange& rows, const LaneTile& tile, Val tileRow,
                        const TileColumns& columns) {
  forEachRun(operand, rows, tile, tileRow, columns, [&](const Row& row) { packRow(row); });
}

void WindowMemory::pack(int operand, Val row, const LaneTile& tile, Val tileRow, const TileColumns& columns) {
  pack(operand, RowRange{row, at(1)}, tile, tileRow, columns);
}

void WindowMemory::unpack(int operand, const RowRange& rows, const LaneTile& tile, int64_t numColumns) {
  const TileColumns columns{.count = numColumns};
  forEachRun(operand, rows, tile, at(0), columns, [&](const Row& row) { unpackRow(row); });
}

void WindowMemory::unpack(int operand, Val row, const LaneTile& tile, Val tileRow, int64_t numColumns) {
  const TileColumns columns{.count = numColumns};
  forEachRun(operand, {row, at(1)}, tile, tileRow, columns, [&](const Row& each) { unpackRow(each); });
}

}  // namespace agspeed::compiler
