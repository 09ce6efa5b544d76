// SPDX-License-Identifier: Apache-2.0
// What calling an operator may do besides computing its results, judged by its name: mutation, randomness, aliasing.
#pragma once

#include <string_view>

#include "compiler/graph/graph.h"

namespace agspeed::compiler {

/// Effects of a call with `numInputs` tensor inputs. Operators outside aten and prims are opaque.
Effects effectsOf(std::string_view target, size_t numInputs);

/// True for operators that only look at their first input another way (and so run no kernel of their own).
bool isViewOp(std::string_view target);

/// The view map (see Node::viewDims) of a view from `source` to `result` that keeps the order of memory: expand,
/// permute, unsqueeze, squeeze, and reshapes that add or drop dimensions of size 1. Nullopt for every other view.
std::optional<std::vector<int32_t>> viewDimsOf(std::string_view target, const std::vector<Argument>& arguments,
                                               const TensorType& source, const TensorType& result);

}  // namespace agspeed::compiler
