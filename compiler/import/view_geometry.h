// SPDX-License-Identifier: Apache-2.0
// ViewGeometry: where a view lies in the memory of its source. Kernels read through views of known geometry, and the
// runtime makes tensors of them without a call.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "compiler/graph/graph.h"

namespace agspeed::compiler {

struct ViewGeometry {
  SymExpr offset;                            ///< see Node::viewOffset
  std::optional<std::vector<int32_t>> dims;  ///< see Node::viewDims
};

/// The geometry of a view from `source` to `result`: permutations, expand, reshapes, slice, select, and as_strided if
/// it is made of such steps. nullopt for every other operator, for empty tensors, and if the result's declared sizes or
/// strides are not the ones that follow from the source's. A size or an index that is known only at run time is
/// trusted: Program::bounds checks it. `beginsMemory`: whether the source's first element is the first one in its
/// memory, where the offset of as_strided begins.
std::optional<ViewGeometry> viewGeometryOf(std::string_view target, const std::vector<Argument>& arguments,
                                           const TensorType& source, const TensorType& result,
                                           bool beginsMemory = false);

}  // namespace agspeed::compiler
