// SPDX-License-Identifier: Apache-2.0
// Builders of operators that only move elements. A split becomes one view for each result, which kernels read through.
// A concatenation becomes a join: kernels write each tensor to its place in the result. Padding becomes a join, too: of
// the source and of one constant for each side that is padded.
#include <algorithm>
#include <cmath>
#include <numeric>

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

// With shorter rows between the sides, ATen's fill and copy are faster. In large results, so they are with longer rows.
constexpr int64_t kShortestPaddedRow = 3;
constexpr int64_t kShortestPaddedRowOfLarge = 64;
constexpr int64_t kLargePadded = 1 << 18;

// The first and the last positions that padding adds to a dimension, or removes if they are negative.
struct Padding {
  int64_t low = 0;
  int64_t high = 0;
};

// By dimension. The operator's list begins with the last dimension.
StatusOr<std::vector<Padding>> paddingOf(const OpImport& op, size_t rank) {
  AG_ASSIGN_OR_RETURN(std::vector<int64_t> list, op.integers("pad"));
  if (list.size() % 2 != 0 || list.size() > 2 * rank) return unsupported("a wrong number of sides");
  std::vector<Padding> padding(rank);
  for (size_t i = 0; i < list.size() / 2; ++i) padding[rank - 1 - i] = {list[2 * i], list[2 * i + 1]};
  return padding;
}

// The value between the cut sides. It is a view of x, or x if nothing is cut.
StatusOr<ValueId> withoutCutSides(OpImport& op, const std::vector<Padding>& padding) {
  const std::string target = "aten.slice.Tensor";
  ValueId value = op.tensor("x");
  for (size_t dim = 0; dim < padding.size(); ++dim) {
    const int64_t begin = std::max<int64_t>(0, -padding[dim].low);
    const int64_t cut = begin + std::max<int64_t>(0, -padding[dim].high);
    if (cut == 0) continue;
    const TensorType source = op.emitter().typeOf(value);
    TensorType type = source;
    type.sizes[dim] = source.sizes[dim] - cut;
    if (type.sizes[dim].isConstant() && type.sizes[dim].constant() <= 0) return unsupported("nothing is left");
    std::vector<Argument> arguments = {Argument::ofInput(0), integer(static_cast<int64_t>(dim)), integer(begin),
                                       integer(begin + type.sizes[dim]), integer(1)};
    std::optional<ViewGeometry> geometry = viewGeometryOf(target, arguments, source, type);
    if (!geometry) return unsupported("kernels cannot read through the slice");
    value = op.emitter().view(target, value, std::move(arguments), *geometry, type);
  }
  return value;
}

// Whether kernels are as fast as ATen. A row holds the elements that are neighbours in both the source and the result.
bool isFast(const TensorType& result, const Dims& sizes, const std::vector<Padding>& padding,
            std::span<const int64_t> hints) {
  int64_t row = 1;
  std::vector<size_t> order(padding.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(order, {}, [&](size_t dim) { return estimate(result.strides[dim], hints); });
  for (size_t dim : order) {
    row *= estimate(sizes[dim], hints);
    if (padding[dim].low != 0 || padding[dim].high != 0) break;
  }
  const bool isLarge = estimate(numElements(result.sizes), hints) > kLargePadded;
  return row >= (isLarge ? kShortestPaddedRowOfLarge : kShortestPaddedRow);
}

// Whether the number fits the dtype. Otherwise ATen raises an error.
bool fits(double number, DType dtype, const Operand& rounded) {
  if (dtype == DType::kBool) return true;
  if (isFloat(dtype)) return std::isfinite(number) == std::isfinite(rounded.number);
  const bool isShort = sizeInBytes(dtype) < sizeof(int32_t);
  return isShort ? number >= 0 && number <= INT8_MAX : number >= INT32_MIN && number <= INT32_MAX;
}

}  // namespace

Status buildConstantPad(OpImport& op) {
  if (!op.isTensor("x")) return unsupported("the source is not a tensor");
  AG_ASSIGN_OR_RETURN(TensorType type, op.resultType());
  AG_RETURN_IF_ERROR(checkPart(op.typeOf("x"), op.typeOf("x").sizes));
  if (isEmpty(op.typeOf("x")) || isEmpty(type)) return unsupported("an empty tensor is left to ATen");
  AG_ASSIGN_OR_RETURN(const std::vector<Padding> padding, paddingOf(op, type.rank()));
  AG_ASSIGN_OR_RETURN(const double number, op.number("value"));
  const Operand filling = op.emitter().number(number, type.dtype);
  if (!fits(number, type.dtype, filling)) return unsupported("the number does not fit the dtype");
  AG_ASSIGN_OR_RETURN(const ValueId source, withoutCutSides(op, padding));
  const Dims sizes = op.emitter().typeOf(source).sizes;
  if (!isFast(type, sizes, padding, op.emitter().graph().hints)) return unsupported("ATen is faster for short rows");

  // The sides of a dimension span all of the later dimensions, and of earlier ones only the source.
  std::vector<Emitter::Part> parts;
  Dims partSizes = type.sizes;
  SymExpr origin = 0;
  for (size_t dim = 0; dim < padding.size(); ++dim) {
    const int64_t low = std::max<int64_t>(0, padding[dim].low);
    const int64_t high = std::max<int64_t>(0, padding[dim].high);
    const SymExpr end = sizes[dim] + low;
    if (!sameValue(type.sizes[dim], end + high)) return unsupported("only a guard makes the result's size equal");
    const auto addSide = [&](const SymExpr& begin, int64_t count) {
      if (count == 0) return;
      partSizes[dim] = count;
      parts.push_back({filling, {type.dtype, partSizes, type.strides}, origin + begin * type.strides[dim]});
    };
    addSide(0, low);
    addSide(end, high);
    partSizes[dim] = sizes[dim];
    origin = origin + low * type.strides[dim];
  }
  const Operand inner = op.emitter().use(source);
  if (parts.empty()) return op.setResult(inner);
  parts.push_back({inner, {type.dtype, sizes, type.strides}, origin});
  return setJoin(op, parts, type);
}

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
