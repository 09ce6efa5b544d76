// SPDX-License-Identifier: Apache-2.0
// The effects of an operator besides its results, by its name: mutation, randomness, aliasing.
#pragma once

#include <string_view>

#include "compiler/graph/graph.h"

namespace agspeed::compiler {

/// Effects of a call with `numInputs` tensor inputs. Operators outside aten and prims are opaque.
Effects effectsOf(std::string_view target, size_t numInputs);

/// Whether the operator only returns a view of its first input, so that it runs no kernel.
bool isViewOp(std::string_view target);

/// The view map (see Node::viewDims) of a view from `source` to `result` without offset: expand, permute, unsqueeze,
/// squeeze, and reshapes that add or drop dimensions of size 1. Nullopt for every other view.
std::optional<std::vector<int32_t>> viewDimsOf(std::string_view target, const std::vector<Argument>& arguments,
                                               const TensorType& source, const TensorType& result);

}  // namespace agspeed::compiler
