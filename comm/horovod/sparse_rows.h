// SPDX-License-Identifier: Apache-2.0
// Sparse tensors as rows of bytes, which ranks can gather. A row is an element: its indices, and behind them its
// values. Ranks may have different numbers of rows.
//
// Thread-safety: all functions, from any thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace agspeed::comm {

/// What the rows of several sparse tensors of one shape have in common.
struct RowForm {
  int64_t numIndices = 0;  ///< of an element: the dimensions that are sparse
  at::ScalarType type = at::kByte;
};

RowForm formOf(const at::Tensor& sparse);
/// A sparse tensor without elements, of the shape and on the device of `like`.
at::Tensor emptySparse(const at::Tensor& like, RowForm form);
/// [elements, bytes of each]: of the tensor coalesced.
at::Tensor rowsOf(const at::Tensor& sparse);
/// The sum of all elements in the rows, divided by `divisor`; not coalesced.
at::Tensor sumOf(const at::Tensor& rows, at::IntArrayRef sizes, RowForm form, double divisor);

}  // namespace agspeed::comm
