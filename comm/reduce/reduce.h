// SPDX-License-Identifier: Apache-2.0
// Reduces buffers in memory with the widest vectors the processor has, chosen at run time. Results have the same bits
// on every processor: no fused multiply-adds, one order (see reduce_op.h).
//
// Thread-safety: pure functions. Nothing is allocated. Any alignment is fine. Buffers are at most partly aliased as
// each function says.
#pragma once

#include <cstddef>
#include <span>

#include "comm/reduce/reduce_op.h"

namespace agspeed::comm {

/// A buffer of elements: of the dtype itself, or of its accumulator type where `isWide`.
struct Operand {
  const std::byte* data = nullptr;
  bool isWide = false;
};

/// What is computed of the inputs.
struct Reduction {
  DType dtype = DType::kF32;
  ReduceOp op = ReduceOp::kSum;
  /// The result is divided by this: the number of ranks where `op` is an average and the result is final, else 1.
  int divisor = 1;
};

/// target[i] = inputs[0][i] op inputs[1][i] op ..., in canonical order. `target` is wide or not; it may be one of the
/// inputs of its own width, or apart from all of them. Requires: checkReduction() is ok, at least one input.
void reduce(std::byte* target, bool isTargetWide, std::span<const Operand> inputs, size_t count,
            const Reduction& reduction);

/// target[i] = source[i] * factor, computed in the accumulator type and, for integers, in f64 truncated to the type's
/// range. `source` may be `target`.
void multiply(std::byte* target, const std::byte* source, size_t count, DType dtype, double factor);

}  // namespace agspeed::comm
