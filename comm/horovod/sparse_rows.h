// SPDX-License-Identifier: Apache-2.0
// Converts sparse tensors to rows of bytes, which an all-gather can move. A row is one element: its indices, followed
// by its values. Ranks may have different numbers of rows.
//
// Thread-safety: all functions, from any thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace agspeed::comm::horovod {

/// Describes the rows of sparse tensors of one shape.
struct RowForm {
  int64_t numIndices = 0;  ///< number of indices per element, which is the number of sparse dimensions
  at::ScalarType type = at::kByte;
};

/// Returns the form of the tensor's rows.
RowForm formOf(const at::Tensor& sparse);
/// Returns a sparse tensor without elements, with the shape and on the device of `like`.
at::Tensor emptySparse(const at::Tensor& like, RowForm form);
/// Coalesces the tensor and returns its rows, as a byte tensor of [number of elements, bytes per element].
at::Tensor rowsOf(const at::Tensor& sparse);
/// Returns a sparse tensor of all elements in the rows, each divided by `divisor`. The tensor is not coalesced:
/// elements with equal indices are not added up yet.
at::Tensor sumOf(const at::Tensor& rows, at::IntArrayRef sizes, RowForm form, double divisor);

}  // namespace agspeed::comm::horovod
