// SPDX-License-Identifier: Apache-2.0
// One pointwise operation on scalars, written as plainly as possible: the oracle of the kernel tests.
#pragma once

#include "kernel_test_support.h"

namespace agspeed::compiler::testing {

/// The operation's result rounded to `result`; inputs have dtype `operands` (the condition of kWhere is bool).
Scalar evaluate(PointwiseOp op, DType operands, DType result, const std::vector<Scalar>& inputs);

}  // namespace agspeed::compiler::testing
