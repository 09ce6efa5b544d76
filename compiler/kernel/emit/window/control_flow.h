// SPDX-License-Identifier: Apache-2.0
// Loops and branches whose bodies are emitted by a function. Bodies emit at the insertion point of the builder.
#pragma once

#include <vector>

#include "passes/kernel/value_builder.h"

namespace agspeed::compiler {

/// for (index = begin; index < end; ++index) body(index). All three are i64.
void emitFor(passes::Val begin, passes::Val end, llvm::function_ref<void(passes::Val)> body);
/// The same, with values that each iteration gets and replaces. Returns the last ones.
std::vector<passes::Val> emitFor(
    passes::Val begin, passes::Val end, const std::vector<passes::Val>& initial,
    llvm::function_ref<std::vector<passes::Val>(passes::Val, const std::vector<passes::Val>&)> body);
void emitIf(passes::Val condition, llvm::function_ref<void()> whenTrue, llvm::function_ref<void()> whenFalse);

}  // namespace agspeed::compiler
