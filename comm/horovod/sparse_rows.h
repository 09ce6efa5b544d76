// SPDX-License-Identifier: Apache-2.0
// Converts sparse tensors to rows of bytes, which ranks can gather. A row is one element: its indices, followed by its
// values. Ranks may have different numbers of rows.
//
// Thread-safety: all functions, from any thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace agspeed::comm {

/// Describes the rows of sparse tensors of one shape.
struct RowForm {
  int64_t numIndices = 0;  ///< per element: the number of sparse dimensions
  at::ScalarType type = at::kByte;
};

RowForm formOf(const at::Tensor& sparse);
/// A sparse tensor without elements, of the shape and on the device of `like`.
at::Tensor emptySparse(const at::Tensor& like, RowForm form);
/// A tensor of [number of elements, bytes per element], made from the coalesced tensor.
at::Tensor rowsOf(const at::Tensor& sparse);
/// The sum of all elements in the rows, divided by `divisor`; not coalesced.
at::Tensor sumOf(const at::Tensor& rows, at::IntArrayRef sizes, RowForm form, double divisor);

}  // namespace agspeed::comm
