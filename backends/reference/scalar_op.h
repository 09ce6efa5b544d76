// SPDX-License-Identifier: Apache-2.0
// Scalar: one element, as a double (floats) or an int64 (integers and bool), and every PointwiseOp on it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "compiler/graph/cluster.h"

namespace agspeed::backends::reference {

/// The dtype that accompanies it says which member is used.
struct Scalar {
  double real = 0;
  int64_t integer = 0;
};

/// Reads or writes element `index` of an array of `dtype`.
Scalar loadScalar(const void* base, DType dtype, int64_t index);
void storeScalar(void* base, DType dtype, int64_t index, Scalar value);

/// Converts `value` of dtype `from` to the value of a node of dtype `to`.
Scalar convertScalar(Scalar value, DType from, DType to);
Scalar constantScalar(double value, DType dtype);

/// The result of an element-wise operation, rounded to `dtype`. inputDType: the dtype of the last input.
Scalar applyScalar(compiler::PointwiseOp op, DType dtype, DType inputDType, std::span<const Scalar> inputs);

/// Start value and step of a reduction.
Scalar reductionIdentity(compiler::PointwiseOp op, DType dtype);
Scalar combineScalars(compiler::PointwiseOp op, DType dtype, Scalar accumulator, Scalar element);

}  // namespace agspeed::backends::reference
