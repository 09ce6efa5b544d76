// SPDX-License-Identifier: Apache-2.0
#include "passes/graph/access.h"

#include <algorithm>

namespace agspeed::passes {

using compiler::Dims;
using compiler::isOne;
using compiler::Node;
using compiler::sameDims;
using compiler::sameValue;
using compiler::ValueId;

namespace {

// Whether `row` is `sizes` without its last numDims dimensions, or with size 1 in each of them.
bool isRowOf(const Dims& row, const Dims& sizes, size_t numDims) {
  size_t numOuter = sizes.size() - numDims;
  if (row.size() != numOuter && row.size() != sizes.size()) return false;
  for (size_t i = 0; i < row.size(); ++i) {
    if (i < numOuter ? !sameValue(row[i], sizes[i]) : !isOne(row[i])) return false;
  }
  return true;
}

}  // namespace

std::optional<ShapeClass> classify(const Dims& sizes, const Space& space) {
  if (sameDims(sizes, space.sizes)) return ShapeClass::kElement;
  if (space.numColumnDims > 0 && isRowOf(sizes, space.sizes, space.numColumnDims)) return ShapeClass::kRow;
  return std::nullopt;
}

std::optional<size_t> columnDimsBetween(const Dims& sizes, const Dims& row) {
  for (size_t numDims = 1; numDims <= sizes.size(); ++numDims) {
    if (isRowOf(row, sizes, numDims)) return numDims;
  }
  return std::nullopt;
}

const Node* AccessResolver::viewBehind(ValueId value) const {
  int32_t producer = producers_[value];
  if (producer < 0 || !graph_.nodes[producer].viewOffset) return nullptr;
  return &graph_.nodes[producer];
}

ValueId AccessResolver::rootOf(ValueId value) const {
  while (const Node* view = viewBehind(value)) value = view->inputs[0];
  return value;
}

SymExpr AccessResolver::offsetOf(ValueId value) const {
  SymExpr offset = 0;
  while (const Node* view = viewBehind(value)) {
    offset = offset + *view->viewOffset;
    value = view->inputs[0];
  }
  return offset;
}

SymExpr AccessResolver::partOffsetOf(ValueId value) const {
  if (joins_[value] < 0) return 0;
  const Node& join = graph_.nodes[joins_[value]];
  return join.offsets[static_cast<size_t>(std::ranges::find(join.inputs, value) - join.inputs.begin())];
}

Access AccessResolver::resolve(ValueId value, const Dims& sizes, size_t spaceRank) const {
  // Broadcasting lines the dimensions of the value up with the dimensions of the node from the right.
  const compiler::TensorType& type = graph_.typeOf(value);
  Access access;
  access.rootDims.assign(spaceRank, -1);
  access.strides.assign(spaceRank, SymExpr(0));
  access.offset = offsetOf(value);
  for (size_t d = 0; d < type.rank(); ++d) {
    size_t nodeDim = sizes.size() - type.rank() + d;
    if (nodeDim >= spaceRank || isOne(type.sizes[d])) continue;
    access.rootDims[nodeDim] = static_cast<int32_t>(d);
    access.strides[nodeDim] = type.strides[d];
  }
  while (const Node* view = viewBehind(value)) {
    for (int32_t& dim : access.rootDims) {
      if (dim >= 0) dim = view->viewDims ? (*view->viewDims)[dim] : kRegrouped;
    }
    value = view->inputs[0];
  }
  access.root = value;
  const Dims& rootSizes = graph_.typeOf(value).sizes;
  for (int32_t& dim : access.rootDims) {
    if (dim >= 0 && isOne(rootSizes[dim])) dim = -1;
  }
  return access;
}

bool hasUniformColumns(const Dims& strides, const Space& space) {
  return compiler::areUniform(space.sizes, strides, space.numOuterDims());
}

Dims stridesInSpace(const compiler::TensorType& type, size_t spaceRank) {
  Dims strides(spaceRank, SymExpr(0));
  for (size_t i = 0; i < type.rank() && i < spaceRank; ++i) {
    if (!isOne(type.sizes[i])) strides[i] = type.strides[i];
  }
  return strides;
}

}  // namespace agspeed::passes
