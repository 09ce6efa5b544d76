// SPDX-License-Identifier: Apache-2.0
#include "compiler/kernel/emit/row_tile.h"

#include "compiler/kernel/emit/window/control_flow.h"
#include "compiler/kernel/emit/window/lane_tile.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"

namespace agspeed::compiler {

using namespace mlir;
using namespace passes;

namespace {

constexpr unsigned kTileAlignment = 64;

// Emits the copy of one direction.
class TileCopy {
 public:
  TileCopy(const RowTile& tile, const TransposedRows& rows)
      : b_(*rows.numRows.builder), tile_(tile), rows_(rows), vector_(VectorType::get({tile.lanes}, tile.element)) {}

  void emit(bool isPacking) {
    Val lanes = b_.like(rows_.numRows, tile_.lanes);
    Val zero = b_.like(lanes, 0);
    Val numBlocks =
        b_.wrap(arith::DivUIOp::create(b_.ops(), b_.loc(), rows_.numColumns.value, lanes.value).getResult());
    numBlocks = select(eq(rows_.numRows, lanes), numBlocks, zero);
    emitFor(zero, numBlocks, [&](Val block) {
      Val column = block * lanes;
      Value memory = offset(rows_.first, column * rows_.columnStride);
      Value tile = offset(tile_.memory, column);
      if (isPacking) {
        store(tile, tile_.pitch, rowsToLanes(load(memory, rows_.columnStride)));
      } else {
        store(memory, rows_.columnStride, rowsToLanes(load(tile, tile_.pitch)));
      }
    });
    emitFor(numBlocks * lanes, rows_.numColumns, [&](Val column) {
      Value memory = offset(rows_.first, column * rows_.columnStride);
      emitFor(zero, rows_.numRows, [&](Val row) {
        Value inMemory = offset(memory, row);
        Value inTile = offset(rowOf(tile_, row), column);
        Value element =
            LLVM::LoadOp::create(b_.ops(), b_.loc(), tile_.element, isPacking ? inMemory : inTile, alignment());
        LLVM::StoreOp::create(b_.ops(), b_.loc(), element, isPacking ? inTile : inMemory, alignment());
      });
    });
  }

 private:
  unsigned alignment() const { return tile_.element.getIntOrFloatBitWidth() / 8; }

  Value offset(Value address, Val elements) {
    return LLVM::GEPOp::create(b_.ops(), b_.loc(), address.getType(), tile_.element, address,
                               ValueRange{elements.value});
  }

  // One vector for each lane. The vectors are `step` elements apart.
  std::vector<Val> load(Value address, Val step) {
    std::vector<Val> vectors;
    for (int i = 0; i < tile_.lanes; ++i) {
      if (i > 0) address = offset(address, step);
      vectors.push_back(b_.wrap(LLVM::LoadOp::create(b_.ops(), b_.loc(), vector_, address, alignment())));
    }
    return vectors;
  }

  void store(Value address, Val step, const std::vector<Val>& vectors) {
    for (size_t i = 0; i < vectors.size(); ++i) {
      if (i > 0) address = offset(address, step);
      LLVM::StoreOp::create(b_.ops(), b_.loc(), vectors[i].value, address, alignment());
    }
  }

  ValueBuilder& b_;
  const RowTile& tile_;
  const TransposedRows& rows_;
  VectorType vector_;
};

}  // namespace

RowTile allocateRowTile(ValueBuilder& b, Type element, int lanes, Val numColumns) {
  // Rows are an odd number of vectors apart, so that they do not share few sets of the cache.
  Val size = b.like(numColumns, lanes);
  Val rounded = numColumns + b.like(numColumns, lanes - 1);
  Val numVectors = b.wrap(arith::DivUIOp::create(b.ops(), b.loc(), rounded.value, size.value).getResult());
  Val pitch = (numVectors | b.like(numVectors, 1)) * size;
  Val numElements = pitch * size;
  Type pointer = LLVM::LLVMPointerType::get(b.ops().getContext());
  Value memory = LLVM::AllocaOp::create(b.ops(), b.loc(), pointer, element, numElements.value, kTileAlignment);
  return {memory, pitch, element, lanes};
}

Value rowOf(const RowTile& tile, Val row) {
  ValueBuilder& b = *row.builder;
  return LLVM::GEPOp::create(b.ops(), b.loc(), tile.memory.getType(), tile.element, tile.memory,
                             ValueRange{(row * tile.pitch).value});
}

void packRows(const RowTile& tile, const TransposedRows& source) { TileCopy(tile, source).emit(/*isPacking=*/true); }

void unpackRows(const RowTile& tile, const TransposedRows& target) { TileCopy(tile, target).emit(/*isPacking=*/false); }

}  // namespace agspeed::compiler
