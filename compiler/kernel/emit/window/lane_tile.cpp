// SPDX-License-Identifier: Apache-2.0
#include "compiler/kernel/emit/window/lane_tile.h"

#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"

namespace agspeed::compiler {

using namespace mlir;
using namespace passes;

namespace {

constexpr unsigned kTileAlignment = 64;

Value vectorAddress(const LaneTile& tile, Val position, int64_t offset) {
  ValueBuilder& b = *position.builder;
  Type pointer = tile.memory.getType();
  Value address = LLVM::GEPOp::create(b.ops(), b.loc(), pointer, tile.vector, tile.memory, ValueRange{position.value});
  if (offset == 0) return address;
  return LLVM::GEPOp::create(b.ops(), b.loc(), pointer, tile.vector, address,
                             ArrayRef<LLVM::GEPArg>{static_cast<int32_t>(offset)});
}

Value laneAddress(const LaneTile& tile, Val position, Val lane) {
  ValueBuilder& b = *position.builder;
  return LLVM::GEPOp::create(b.ops(), b.loc(), tile.memory.getType(), tile.vector.getElementType(),
                             vectorAddress(tile, position, 0), ValueRange{lane.value});
}

int64_t sizeOf(Val vector) { return cast<VectorType>(vector.type()).getDimSize(0); }

Val elementsOf(Val a, Val b, ArrayRef<int64_t> mask) {
  ValueBuilder& builder = *a.builder;
  return builder.wrap(vector::ShuffleOp::create(builder.ops(), builder.loc(), a.value, b.value, mask));
}

// Elements begin, begin + step, ... of a followed by b.
Val take(Val a, Val b, int64_t begin, int64_t step, int64_t count) {
  SmallVector<int64_t> mask;
  for (int64_t i = 0; i < count; ++i) mask.push_back(begin + i * step);
  return elementsOf(a, b, mask);
}

// a[begin], b[begin], a[begin + 1], b[begin + 1], ...
Val interleaved(Val a, Val b, int64_t begin) {
  SmallVector<int64_t> mask;
  for (int64_t i = 0; i < sizeOf(a) / 2; ++i) {
    mask.push_back(begin + i);
    mask.push_back(sizeOf(a) + begin + i);
  }
  return elementsOf(a, b, mask);
}

}  // namespace

LaneTile allocateTile(ValueBuilder& b, int64_t rows, int64_t columns, VectorType vector) {
  Value count = b.integer(b.ops().getI64Type(), rows * columns).value;
  Type pointer = LLVM::LLVMPointerType::get(b.ops().getContext());
  return {LLVM::AllocaOp::create(b.ops(), b.loc(), pointer, vector, count, kTileAlignment), vector, columns};
}

Val loadVector(const LaneTile& tile, Val position, int64_t offset) {
  ValueBuilder& b = *position.builder;
  return b.wrap(
      LLVM::LoadOp::create(b.ops(), b.loc(), tile.vector, vectorAddress(tile, position, offset), kTileAlignment / 2));
}

void storeVector(const LaneTile& tile, Val position, int64_t offset, Val value) {
  ValueBuilder& b = *position.builder;
  LLVM::StoreOp::create(b.ops(), b.loc(), value.value, vectorAddress(tile, position, offset), kTileAlignment / 2);
}

Val loadLane(const LaneTile& tile, Val position, Val lane) {
  ValueBuilder& b = *position.builder;
  return b.wrap(
      LLVM::LoadOp::create(b.ops(), b.loc(), tile.vector.getElementType(), laneAddress(tile, position, lane)));
}

void storeLane(const LaneTile& tile, Val position, Val lane, Val value) {
  ValueBuilder& b = *position.builder;
  LLVM::StoreOp::create(b.ops(), b.loc(), value.value, laneAddress(tile, position, lane));
}

// An element's place is a string of bits: the number of its vector, then its place in the vector. Rows of lanes r with
// columns c have the string r c; the result has c r. Interleaving vector i with vector i + half rotates the string by
// one bit, so log2(lanes) rounds are needed.
std::vector<Val> rowsToLanes(std::vector<Val> rows) {
  const auto numLanes = static_cast<int64_t>(rows.size());
  const auto width = static_cast<size_t>(sizeOf(rows[0]));
  while (rows.size() > width) {
    std::vector<Val> joined;
    for (size_t i = 0; i < rows.size(); i += 2) {
      joined.push_back(take(rows[i], rows[i + 1], 0, 1, 2 * sizeOf(rows[i])));
    }
    rows = std::move(joined);
  }
  for (int64_t round = 1; round < numLanes; round *= 2) {
    std::vector<Val> next;
    for (size_t i = 0; i < width / 2; ++i) {
      next.push_back(interleaved(rows[i], rows[i + width / 2], 0));
      next.push_back(interleaved(rows[i], rows[i + width / 2], numLanes / 2));
    }
    rows = std::move(next);
  }
  return rows;
}

std::vector<Val> lanesToRows(std::vector<Val> vectors) {
  const int64_t numLanes = sizeOf(vectors[0]);
  const size_t half = vectors.size() / 2;
  for (int64_t round = 1; round < numLanes; round *= 2) {
    std::vector<Val> next(vectors.size());
    for (size_t i = 0; i < half; ++i) {
      next[i] = take(vectors[2 * i], vectors[2 * i + 1], 0, 2, numLanes);
      next[i + half] = take(vectors[2 * i], vectors[2 * i + 1], 1, 2, numLanes);
    }
    vectors = std::move(next);
  }
  while (static_cast<int64_t>(vectors.size()) < numLanes) {
    std::vector<Val> halves;
    for (const Val& vector : vectors) {
      halves.push_back(take(vector, vector, 0, 1, sizeOf(vector) / 2));
      halves.push_back(take(vector, vector, sizeOf(vector) / 2, 1, sizeOf(vector) / 2));
    }
    vectors = std::move(halves);
  }
  return vectors;
}

}  // namespace agspeed::compiler
