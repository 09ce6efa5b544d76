// SPDX-License-Identifier: Apache-2.0
// Scalar: one element, as a double (floats) or an int64 (integers and bool), and every PointwiseOp on it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "compiler/graph/cluster.h"

namespace agspeed::backends::reference {

/// Which member counts follows from the dtype that goes with it.
struct Scalar {
  double real = 0;
  int64_t integer = 0;
};

/// Reads or writes element `index` of an array of `dtype`.
Scalar loadScalar(const void* base, DType dtype, int64_t index);
void storeScalar(void* base, DType dtype, int64_t index, Scalar value);

/// `value` of dtype `from` as a node of dtype `to` holds it.
Scalar convertScalar(Scalar value, DType from, DType to);
Scalar constantScalar(double value, DType dtype);

/// The result of an element-wise operation, rounded to `dtype`. inputDType: the dtype of the last input.
Scalar applyScalar(compiler::PointwiseOp op, DType dtype, DType inputDType, std::span<const Scalar> inputs);

/// Start value and step of a reduction.
Scalar reductionIdentity(compiler::PointwiseOp op, DType dtype);
Scalar combineScalars(compiler::PointwiseOp op, DType dtype, Scalar accumulator, Scalar element);

}  // namespace agspeed::backends::reference
