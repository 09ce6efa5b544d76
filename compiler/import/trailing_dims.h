// SPDX-License-Identifier: Apache-2.0
// Decides whether a reduction runs over trailing dimensions that a kernel can process as one row.
#pragma once

#include "compiler/import/op_import.h"

namespace agspeed::compiler {

/// The number of trailing dimensions that `dims` names (all of them if it is empty) on a tensor of this type.
/// Errors: kUnsupported if they are not the last ones, not contiguous in memory, or empty, or if there is a single row
/// so long that ATen's parallel and cascaded sum is better.
StatusOr<size_t> trailingDims(const TensorType& type, const std::vector<int64_t>& dims, std::span<const int64_t> hints);
/// Whether the rows of `numDims` trailing dimensions are not contiguous, but can be transposed on the way: the columns
/// are uniform, and the last dimension before them has stride 1 and many elements.
bool hasTransposedRows(const TensorType& type, size_t numDims, std::span<const int64_t> hints);
/// The size of a row of `numDims` trailing dimensions.
SymExpr rowSize(const TensorType& type, size_t numDims);

}  // namespace agspeed::compiler
