// SPDX-License-Identifier: Apache-2.0
#include "compiler/graph/tensor_type.h"

#include <algorithm>
#include <array>

namespace agspeed::compiler {
namespace {

constexpr int64_t kDefaultHint = 64;

// Symbol values at sample point p: distinct per symbol, small and large, and often coprime, to distinguish polynomials.
std::vector<int64_t> samplePoint(int numSymbols, int point) {
  constexpr std::array<int64_t, 6> kBases = {2, 3, 64, 101, 4099, 30011};
  std::vector<int64_t> values;
  for (int i = 0; i < numSymbols; ++i) values.push_back(kBases[point] + int64_t{point + 1} * i * (i + 3));
  return values;
}

std::string joinDims(const Dims& dims) {
  std::string text;
  for (size_t i = 0; i < dims.size(); ++i) text += (i ? "," : "") + dims[i].toString();
  return text;
}

}  // namespace

bool sameValue(const SymExpr& a, const SymExpr& b) {
  if (a.isConstant() && b.isConstant()) return a.constant() == b.constant();
  int numSymbols = std::max(a.maxSymbol(), b.maxSymbol()) + 1;
  for (int point = 0; point < 6; ++point) {
    std::vector<int64_t> values = samplePoint(numSymbols, point);
    StatusOr<int64_t> x = a.evaluate(values);
    StatusOr<int64_t> y = b.evaluate(values);
    if (!x.hasValue() || !y.hasValue()) return a == b;
    if (*x != *y) return false;
  }
  return true;
}

bool sameDims(const Dims& a, const Dims& b) { return std::ranges::equal(a, b, sameValue); }

bool sameType(const TensorType& a, const TensorType& b) {
  return a.dtype == b.dtype && sameDims(a.sizes, b.sizes) && sameDims(a.strides, b.strides);
}

bool isOne(const SymExpr& size) { return size.isConstant() && size.constant() == 1; }
bool isZero(const SymExpr& size) { return size.isConstant() && size.constant() == 0; }

bool isNotNegative(const SymExpr& value) { return sameValue(max(value, 0), value); }

std::optional<SymExpr> sliceBegin(const SymExpr& index, const SymExpr& size) {
  if (isZero(index)) return index;
  if (index.isConstant() && index.constant() < 0) return max(size + index, 0);
  if (!isNotNegative(index)) return std::nullopt;
  return isNotNegative(size - index) ? index : min(index, size);
}

SymExpr numElements(const Dims& sizes) {
  SymExpr count = 1;
  for (const SymExpr& size : sizes) count = count * size;
  return count;
}

Dims contiguousStrides(const Dims& sizes) {
  Dims strides(sizes.size());
  SymExpr stride = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    strides[i] = stride;
    if (!isZero(sizes[i])) stride = stride * sizes[i];
  }
  return strides;
}

TensorType contiguousType(DType dtype, Dims sizes) {
  Dims strides = contiguousStrides(sizes);
  return {dtype, std::move(sizes), std::move(strides)};
}

bool isContiguous(const TensorType& type) { return isContiguousFrom(type, 0); }

bool isContiguousFrom(const TensorType& type, size_t begin) {
  Dims expected = contiguousStrides(type.sizes);
  for (size_t i = begin; i < type.rank(); ++i) {
    if (!isOne(type.sizes[i]) && !sameValue(type.strides[i], expected[i])) return false;
  }
  return true;
}

bool areUniform(const Dims& sizes, const Dims& strides, size_t begin) {
  std::optional<SymExpr> expected;
  for (size_t i = sizes.size(); i-- > begin;) {
    if (isOne(sizes[i])) continue;
    if (expected && !sameValue(strides[i], *expected)) return false;
    expected = strides[i] * sizes[i];
  }
  return true;
}

bool sameLayout(const TensorType& a, const TensorType& b) {
  if (!sameDims(a.sizes, b.sizes)) return false;
  for (size_t i = 0; i < a.rank(); ++i) {
    if (!isOne(a.sizes[i]) && !sameValue(a.strides[i], b.strides[i])) return false;
  }
  return true;
}

TensorType channelsToEnd(TensorType type) {
  for (Dims* dims : {&type.sizes, &type.strides}) std::rotate(dims->begin() + 1, dims->begin() + 2, dims->end());
  return type;
}

TensorType channelsLastType(TensorType type) {
  type.strides = contiguousStrides(channelsToEnd(type).sizes);
  std::rotate(type.strides.begin() + 1, type.strides.end() - 1, type.strides.end());
  return type;
}

bool isChannelsLast(const TensorType& type) { return isContiguous(channelsToEnd(type)); }

Dims broadcastDims(const Dims& a, const Dims& b) {
  Dims result = a.size() >= b.size() ? a : b;
  const Dims& other = a.size() >= b.size() ? b : a;
  for (size_t i = 0; i < other.size(); ++i) {
    SymExpr& size = result[result.size() - other.size() + i];
    if (isOne(size)) size = other[i];
  }
  return result;
}

bool broadcastsTo(const Dims& from, const Dims& to) {
  if (from.size() > to.size()) return false;
  auto fits = [](const SymExpr& size, const SymExpr& wanted) { return isOne(size) || sameValue(size, wanted); };
  return std::equal(from.begin(), from.end(), to.end() - static_cast<std::ptrdiff_t>(from.size()), fits);
}

std::string TensorType::toString() const {
  std::string text = std::string(agspeed::toString(dtype)) + "[" + joinDims(sizes) + "]";
  return sameDims(strides, contiguousStrides(sizes)) ? text : text + "{" + joinDims(strides) + "}";
}

int64_t estimate(const SymExpr& expr, std::span<const int64_t> hints) {
  std::vector<int64_t> values(hints.begin(), hints.end());
  values.resize(std::max<size_t>(values.size(), static_cast<size_t>(expr.maxSymbol() + 1)), kDefaultHint);
  StatusOr<int64_t> value = expr.evaluate(values);
  return value.hasValue() ? *value : kDefaultHint;
}

}  // namespace agspeed::compiler
