// SPDX-License-Identifier: Apache-2.0
// Integer operations with ATen's semantics if these differ from the machine's. None of them traps: a division by zero
// gives 0, and the smallest integer divided by -1 wraps around.
#pragma once

#include "passes/kernel/value_builder.h"

namespace agspeed::compiler {

/// Quotient rounded towards minus infinity.
passes::Val intFloorDiv(passes::Val a, passes::Val b, passes::Signedness signedness);
/// Remainder with the sign of b (Python).
passes::Val intRemainder(passes::Val a, passes::Val b, passes::Signedness signedness);
/// Remainder with the sign of a (C).
passes::Val intFmod(passes::Val a, passes::Val b, passes::Signedness signedness);
/// Wraps around; a negative exponent gives 1 for base 1, +-1 for base -1, else 0.
passes::Val intPower(passes::Val base, passes::Val exponent, passes::Signedness signedness);
/// Out-of-range shift counts (negative or at least the width) give 0, or the sign if a signed integer is shifted right.
passes::Val intShiftLeft(passes::Val a, passes::Val bits, passes::Signedness signedness);
passes::Val intShiftRight(passes::Val a, passes::Val bits, passes::Signedness signedness);

}  // namespace agspeed::compiler
