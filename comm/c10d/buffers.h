// SPDX-License-Identifier: Apache-2.0
// Tensors as the runs of bytes that operations work on.
//
// A dense tensor in host memory is used in place. Of a strided one a dense copy is made, of one on a device a copy in
// pinned host memory that may come later than the call (staging.h); results are copied back when the operation has
// succeeded. All tensors of a call that are not in host memory are on one device.
//
// Thread-safety: one thread at a time. Ownership: keeps all tensors alive that it has given bytes of.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "comm/api.h"
#include "comm/c10d/staging.h"
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

  /// Copies results to where they belong, those on a device behind the thread's back: Staging::join().
  void finish();
  /// Whether what is to be read is there; null where it is at once.
  Readiness readiness() const;
  /// The way of tensors that are on a device; null where none is.
  const std::shared_ptr<Staging>& staging() const { return staging_; }

 private:
  /// Where `tensor` has to be copied to or from.
  Staging& stagingOf(const at::Tensor& tensor);
  at::Tensor denseCopy(const at::Tensor& tensor);
  std::span<std::byte> keep(const at::Tensor& dense);

  std::vector<at::Tensor> kept_;
  std::shared_ptr<Staging> staging_;
  std::vector<std::pair<at::Tensor, at::Tensor>> results_;  ///< from, to
};

}  // namespace agspeed::comm
