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

}  // namespace agspeed::compiler
