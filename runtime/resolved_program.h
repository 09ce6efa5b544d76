// SPDX-License-Identifier: Apache-2.0
// ResolvedProgram: a Program with every SymExpr evaluated for one set of symbol values.
//
// A Program without symbols is resolved once, when it is loaded; otherwise once per new set of sizes (executor.h keeps
// the recent ones). Immutable after construction, shared by all calls with the same sizes.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/program.h"

namespace agspeed::runtime {

struct TensorLayout {
  DType dtype = DType::kF32;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;  ///< in elements
  int64_t bytes = 0;             ///< of the storage that sizes and strides span
};

/// One KernelCall: its integers start at ResolvedProgram::integers[firstInteger].
struct ResolvedLaunch {
  size_t firstInteger = 0;
  size_t firstOffset = 0;   ///< of its operands, in ResolvedProgram::operandOffsets
  bool hasOffsets = false;  ///< false: all operands begin at the first element of their value
  int64_t extent = 0;
  int64_t grain = 0;
};

/// Data that a TensorBackend derives from the sizes and keeps with them: operator calls without their tensors.
class PreparedCalls {
 public:
  virtual ~PreparedCalls() = default;
};

struct ResolvedProgram {
  std::vector<int64_t> symbols;
  std::vector<TensorLayout> layouts;     ///< by ValueId; empty for scalars
  std::vector<int64_t> scalars;          ///< by ValueId; 0 for tensors
  std::vector<int64_t> arenaOffsets;     ///< by ValueId; -1 outside the arena
  std::vector<int64_t> viewOffsets;      ///< by ValueId, in elements; 0 for values that are no views
  std::vector<int64_t> integers;         ///< of all launches
  std::vector<int64_t> operandOffsets;   ///< in bytes, of all launches that have some
  std::vector<ResolvedLaunch> launches;  ///< in program order
  int64_t arenaBytes = 0;
  std::unique_ptr<PreparedCalls> calls;
};

/// Errors: kInvalidArgument when an expression cannot be evaluated, a size is negative, an arena value does not fit or
/// a Bound does not hold.
StatusOr<std::unique_ptr<ResolvedProgram>> resolve(const Program& program, std::vector<int64_t> symbols);

}  // namespace agspeed::runtime
