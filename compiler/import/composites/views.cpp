// SPDX-License-Identifier: Apache-2.0
// Builders of operators that only move elements. A split becomes one view for each result, which kernels read through.
// A concatenation becomes a join: kernels write each tensor to its place in the result.
#include <algorithm>

#include "compiler/import/op_table.h"

namespace agspeed::compiler {
namespace {

StatusOr<size_t> dimensionOf(const OpImport& op, size_t rank) {
  AG_ASSIGN_OR_RETURN(int64_t dim, op.integer("dim"));
  if (dim < 0) dim += static_cast<int64_t>(rank);
  if (dim < 0 || static_cast<size_t>(dim) >= rank) return unsupported("dimension {} of {}", dim, rank);
  return static_cast<size_t>(dim);
}

// Declares the index-th result as a view of x.
Status setView(OpImport& op, size_t index, const std::string& target, std::vector<Argument> arguments) {
  AG_ASSIGN_OR_RETURN(TensorType type, op.resultType(index));
  ValueId source = op.tensor("x");
  std::optional<ViewGeometry> geometry = viewGeometryOf(target, arguments, op.emitter().typeOf(source), type);
  if (!geometry) return unsupported("a result lies in memory in another way");
  ValueId view = op.emitter().view(target, source, std::move(arguments), *geometry, type);
  op.emitter().graph().values[view].name = op.resultName(index);
  op.setResultValue(view, index);
  return {};
}

Argument integer(SymExpr value) { return Argument::ofInteger(std::move(value)); }

Dims without(Dims dims, size_t dim) {
  dims.erase(dims.begin() + static_cast<std::ptrdiff_t>(dim));
  return dims;
}

bool isEmpty(const TensorType& type) { return std::ranges::any_of(type.sizes, isZero); }

Status checkPart(const TensorType& type, const Dims& expected) {
  if (type.dtype == DType::kC64 || type.dtype == DType::kC128) return unsupported("complex numbers are left to ATen");
  if (!sameDims(type.sizes, expected)) return unsupported("only a guard makes the sizes equal");
  return {};
}

Status setJoin(OpImport& op, const std::vector<Emitter::Part>& parts, const TensorType& type) {
  if (parts.empty()) return unsupported("an empty tensor is left to ATen");
  op.setResultValue(op.emitter().join(parts, type, op.resultName()), 0);
  return {};
}

}  // namespace

Status buildSplit(OpImport& op) {
  if (!op.isTensor("x")) return unsupported("the source is not a tensor");
  const TensorType source = op.typeOf("x");
  AG_ASSIGN_OR_RETURN(const size_t dim, dimensionOf(op, source.rank()));
  SymExpr begin = 0;
  for (size_t i = 0; i < op.numResults(); ++i) {
    AG_ASSIGN_OR_RETURN(TensorType type, op.resultType(i));
    if (type.rank() != source.rank()) return unsupported("a result has another rank");
    SymExpr end = begin + type.sizes[dim];
    AG_RETURN_IF_ERROR(
        setView(op, i, "aten.slice.Tensor",
                {Argument::ofInput(0), integer(static_cast<int64_t>(dim)), integer(begin), integer(end), integer(1)}));
    begin = end;
  }
  return sameValue(begin, source.sizes[dim]) ? Status() : unsupported("the results do not cover the source");
}

Status buildUnbind(OpImport& op) {
  if (!op.isTensor("x")) return unsupported("the source is not a tensor");
  AG_ASSIGN_OR_RETURN(const size_t dim, dimensionOf(op, op.typeOf("x").rank()));
  for (size_t i = 0; i < op.numResults(); ++i) {
    AG_RETURN_IF_ERROR(
        setView(op, i, "aten.select.int",
                {Argument::ofInput(0), integer(static_cast<int64_t>(dim)), integer(static_cast<int64_t>(i))}));
  }
  return {};
}

Status buildCat(OpImport& op) {
  AG_ASSIGN_OR_RETURN(TensorType type, op.resultType());
  AG_ASSIGN_OR_RETURN(std::vector<ValueId> tensors, op.tensors("tensors"));
  AG_ASSIGN_OR_RETURN(const size_t dim, dimensionOf(op, type.rank()));
  std::vector<Emitter::Part> parts;
  SymExpr begin = 0;
  for (ValueId tensor : tensors) {
    const TensorType& part = op.emitter().typeOf(tensor);
    if (part.rank() == 1 && isEmpty(part)) continue;  // torch accepts it beside tensors of any rank
    if (part.rank() != type.rank()) return unsupported("the tensors have different ranks");
    Dims expected = type.sizes;
    expected[dim] = part.sizes[dim];
    AG_RETURN_IF_ERROR(checkPart(part, expected));
    if (isEmpty(part)) continue;
    parts.push_back({op.emitter().use(tensor), {type.dtype, part.sizes, type.strides}, begin * type.strides[dim]});
    begin = begin + part.sizes[dim];
  }
  if (!sameValue(begin, type.sizes[dim])) return unsupported("the tensors do not cover the result");
  return setJoin(op, parts, type);
}

Status buildStack(OpImport& op) {
  AG_ASSIGN_OR_RETURN(TensorType type, op.resultType());
  AG_ASSIGN_OR_RETURN(std::vector<ValueId> tensors, op.tensors("tensors"));
  AG_ASSIGN_OR_RETURN(const size_t dim, dimensionOf(op, type.rank()));
  std::vector<Emitter::Part> parts;
  for (ValueId tensor : tensors) {
    const TensorType& part = op.emitter().typeOf(tensor);
    AG_RETURN_IF_ERROR(checkPart(part, without(type.sizes, dim)));
    if (isEmpty(part)) return unsupported("an empty tensor is left to ATen");
    SymExpr offset = static_cast<int64_t>(parts.size()) * type.strides[dim];
    parts.push_back({op.emitter().use(tensor), {type.dtype, part.sizes, without(type.strides, dim)}, offset});
  }
  bool coversAll = sameValue(type.sizes[dim], static_cast<int64_t>(parts.size()));
  return coversAll ? setJoin(op, parts, type) : unsupported("the tensors do not cover the result");
}

}  // namespace agspeed::compiler
