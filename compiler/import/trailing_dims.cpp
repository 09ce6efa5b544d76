// SPDX-License-Identifier: Apache-2.0
#include "compiler/import/trailing_dims.h"

#include <algorithm>
#include <set>

namespace agspeed::compiler {
namespace {

// One thread reduces a single row. Beyond this number of elements ATen's split reduction is faster and more accurate.
constexpr int64_t kLongestSingleRow = 32768;

// As passes/graph/build_kernel.cpp, which chooses the layout that the kernel is compiled for.
constexpr int64_t kFewestNeighbours = 16;

}  // namespace

StatusOr<size_t> trailingDims(const TensorType& type, const std::vector<int64_t>& dims,
                              std::span<const int64_t> hints) {
  auto rank = static_cast<int64_t>(type.rank());
  if (rank == 0) return unsupported("reduces a 0-d tensor");
  std::set<int64_t> reduced;
  for (int64_t dim : dims) reduced.insert(dim < 0 ? dim + rank : dim);
  size_t numDims = dims.empty() ? type.rank() : reduced.size();
  if (!dims.empty() && *reduced.begin() != rank - static_cast<int64_t>(numDims)) {
    return unsupported("reduces other dimensions than the last ones");
  }
  if (std::ranges::any_of(type.sizes, isZero)) return unsupported("an empty tensor is left to ATen");
  if (!isContiguousFrom(type, type.rank() - numDims)) return unsupported("the reduced dimensions are not contiguous");
  Dims outer(type.sizes.begin(), type.sizes.end() - static_cast<std::ptrdiff_t>(numDims));
  bool isSingleRow = estimate(numElements(outer), hints) <= 1;
  if (isSingleRow && estimate(numElements(type.sizes), hints) > kLongestSingleRow) return unsupported("one long row");
  return numDims;
}

bool hasTransposedRows(const TensorType& type, size_t numDims, std::span<const int64_t> hints) {
  if (numDims == 0 || numDims >= type.rank() || std::ranges::any_of(type.sizes, isZero)) return false;
  const SymExpr columns = rowSize(type, numDims);
  if (!columns.isConstant() || columns.constant() > kMostTransposedColumns) return false;
  size_t numRowDims = type.rank() - numDims;
  if (!areUniform(type.sizes, type.strides, numRowDims)) return false;
  // Dimensions that follow each other in memory become one loop.
  SymExpr neighbours = 1;
  for (size_t d = numRowDims; d-- > 0;) {
    if (isOne(type.sizes[d])) continue;
    if (!sameValue(type.strides[d], neighbours)) break;
    neighbours = neighbours * type.sizes[d];
  }
  return estimate(neighbours, hints) >= kFewestNeighbours;
}

SymExpr rowSize(const TensorType& type, size_t numDims) {
  return numElements(Dims(type.sizes.end() - static_cast<std::ptrdiff_t>(numDims), type.sizes.end()));
}

}  // namespace agspeed::compiler
