// SPDX-License-Identifier: Apache-2.0
// TensorType: dtype, sizes and strides of a graph value, and tests that passes make on symbolic sizes.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/dtype.h"
#include "runtime/base/sym_expr.h"

namespace agspeed::compiler {

using Dims = std::vector<SymExpr>;

struct TensorType {
  DType dtype = DType::kF32;
  Dims sizes;
  Dims strides;  ///< in elements, one per size

  size_t rank() const { return sizes.size(); }
  /// "f32[64,s0]" when contiguous, else with strides: "f32[64,s0]{1,64}".
  std::string toString() const;
};

/// Whether a and b are equal for all symbol values >= 2 (sizes 0 and 1 are never symbols). It evaluates both at fixed
/// sample points, so polynomials that are written differently compare equal.
bool sameValue(const SymExpr& a, const SymExpr& b);
bool sameDims(const Dims& a, const Dims& b);
/// Same dtype, sizes and strides.
bool sameType(const TensorType& a, const TensorType& b);
bool isOne(const SymExpr& size);
bool isZero(const SymExpr& size);

/// Whether the value is not negative for any symbol values that a graph was captured for. A value with symbols is only
/// sampled.
bool isNotNegative(const SymExpr& value);
/// Where a slice that is given this index begins in a dimension of this size. A negative index counts from the end.
/// nullopt: the sign of the index is not known.
std::optional<SymExpr> sliceBegin(const SymExpr& index, const SymExpr& size);

SymExpr numElements(const Dims& sizes);
/// Row-major strides. The stride of a dimension counts at least one element of every inner dimension, as in ATen.
Dims contiguousStrides(const Dims& sizes);
TensorType contiguousType(DType dtype, Dims sizes);
bool isContiguous(const TensorType& type);
/// Whether dimensions [begin, rank) step through memory like one dimension, with stride 1 at the end.
bool isContiguousFrom(const TensorType& type, size_t begin);
/// Whether dimensions [begin, rank) step through memory like one dimension, with any stride at the end. Strides of
/// dimensions of size 1 do not matter.
bool areUniform(const Dims& sizes, const Dims& strides, size_t begin);
/// Whether both types describe the same places in memory. Strides of dimensions of size 1 do not matter.
bool sameLayout(const TensorType& a, const TensorType& b);
/// [N, C, ...] as [N, ..., C], the same places in memory. Requires: at least two dimensions.
TensorType channelsToEnd(TensorType type);
/// The type of [N, C, ...] whose memory is a contiguous [N, ..., C].
TensorType channelsLastType(TensorType type);
/// Whether the memory of [N, C, ...] is a contiguous [N, ..., C]. It may be a contiguous [N, C, ...] as well.
bool isChannelsLast(const TensorType& type);
/// ATen's broadcast of two shapes. Requires: they are compatible.
Dims broadcastDims(const Dims& a, const Dims& b);
/// Whether a tensor of sizes `from` is known to broadcast to sizes `to`. Sizes that are equal only by a guard do not
/// count.
bool broadcastsTo(const Dims& from, const Dims& to);

/// The value with the given hints for symbols; a symbol without a hint counts as 64. For heuristics only.
int64_t estimate(const SymExpr& expr, std::span<const int64_t> hints);

}  // namespace agspeed::compiler
