// SPDX-License-Identifier: Apache-2.0
#include "comm/horovod/sparse_rows.h"

#include <ATen/ATen.h>

#include <vector>

namespace agspeed::comm::horovod {
namespace {

constexpr int64_t kBytesPerIndex = sizeof(int64_t);

/// Returns the bytes of `count` elements, one row per element.
at::Tensor bytesOf(const at::Tensor& elements, int64_t count, int64_t bytesPerElement) {
  return elements.reshape({-1}).view(at::kByte).reshape({count, bytesPerElement});
}

/// The inverse of bytesOf(), for a part of each row.
at::Tensor elementsOf(const at::Tensor& rows, int64_t begin, int64_t size, at::ScalarType type) {
  return rows.narrow(1, begin, size).clone(at::MemoryFormat::Contiguous).reshape({-1}).view(type);
}

}  // namespace

RowForm formOf(const at::Tensor& sparse) { return {.numIndices = sparse.sparse_dim(), .type = sparse.scalar_type()}; }

at::Tensor emptySparse(const at::Tensor& like, RowForm form) {
  return sumOf(at::empty({0, kBytesPerIndex * form.numIndices}, like.options().dtype(at::kByte)), like.sizes(), form,
               1);
}

at::Tensor rowsOf(const at::Tensor& sparse) {
  const at::Tensor own = sparse.coalesce();
  const at::Tensor values = own.values();
  const int64_t count = values.size(0);
  int64_t numValues = 1;
  for (const int64_t each : values.sizes().slice(1)) numValues *= each;
  return at::cat({bytesOf(own.indices().t(), count, kBytesPerIndex * own.sparse_dim()),
                  bytesOf(values, count, numValues * values.element_size())},
                 1);
}

at::Tensor sumOf(const at::Tensor& rows, at::IntArrayRef sizes, RowForm form, double divisor) {
  const int64_t count = rows.size(0), numIndexBytes = kBytesPerIndex * form.numIndices;
  std::vector<int64_t> shape = sizes.slice(static_cast<size_t>(form.numIndices)).vec();
  shape.insert(shape.begin(), count);
  const at::Tensor indices = elementsOf(rows, 0, numIndexBytes, at::kLong).view({count, form.numIndices}).t();
  at::Tensor values = elementsOf(rows, numIndexBytes, rows.size(1) - numIndexBytes, form.type).view(shape);
  if (divisor != 1) values = values.div(divisor);
  return at::sparse_coo_tensor(indices, values, sizes);
}

}  // namespace agspeed::comm::horovod
