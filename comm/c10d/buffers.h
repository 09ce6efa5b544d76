// SPDX-License-Identifier: Apache-2.0
// Tensors as the runs of bytes that operations work on.
//
// A dense tensor in host memory is used in place. Of any other one (strided, on a device) a dense host copy is made,
// and copied back when the operation has succeeded.
//
// Thread-safety: one thread at a time. Ownership: keeps all tensors alive that it has given bytes of.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "runtime/base/dtype.h"

namespace agspeed::comm {

/// The type whose elements can be reduced. Throws ValueError where there is none.
DType reducibleTypeOf(const at::Tensor& tensor);
/// The type under which elements are only moved: their own, or bytes where we have no name for it.
DType movableTypeOf(const at::Tensor& tensor);

class Buffers {
 public:
  /// What the operation only reads.
  std::span<std::byte> read(const at::Tensor& tensor);
  /// What it writes completely.
  std::span<std::byte> write(const at::Tensor& tensor);
  /// What it reads, and then writes completely.
  std::span<std::byte> update(const at::Tensor& tensor);

  /// Copies results to where they belong. Any thread.
  void finish();

 private:
  std::span<std::byte> keep(const at::Tensor& dense);

  std::vector<at::Tensor> kept_;
  std::vector<std::pair<at::Tensor, at::Tensor>> results_;  ///< from, to
};

}  // namespace agspeed::comm
