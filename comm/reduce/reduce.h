// SPDX-License-Identifier: Apache-2.0
// Reduces buffers in memory with the widest vectors of the processor, chosen at run time. Results have the same bits on
// every processor: there are no fused multiply-adds, and the order is fixed (see reduce_op.h).
//
// All functions are pure and thread-safe, and allocate nothing. Any alignment is allowed. Each function states which
// buffers may be the same.
#pragma once

#include <cstddef>
#include <span>

#include "comm/reduce/reduce_op.h"

namespace agspeed::comm::reduce {

/// A buffer of elements of the dtype, or of its accumulator type if `isWide`.
struct Operand {
  const std::byte* data = nullptr;
  bool isWide = false;
};

/// The reduction to compute.
struct Reduction {
  DType dtype = DType::kF32;
  ReduceOp op = ReduceOp::kSum;
  /// The divisor of the result: the number of ranks if `op` is an average and the result is final, otherwise 1.
  int divisor = 1;
};

/// Computes target[i] = inputs[0][i] op inputs[1][i] op ..., in canonical order. `isTargetWide`: whether the target has
/// the accumulator type. `target` may be an input of the same width; otherwise it must not overlap any input. Requires:
/// checkReduction() is ok, and there is at least one input.
void reduce(std::byte* target, bool isTargetWide, std::span<const Operand> inputs, size_t count,
            const Reduction& reduction);

/// Computes target[i] = source[i] * factor in the accumulator type. Integers are computed in f64, truncated, and
/// clamped to the type's range. `source` may be `target`.
void multiply(std::byte* target, const std::byte* source, size_t count, DType dtype, double factor);

}  // namespace agspeed::comm::reduce
