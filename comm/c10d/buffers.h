// SPDX-License-Identifier: Apache-2.0
// Tensors as byte ranges for operations.
//
// A dense tensor in host memory is used in place. A strided tensor is copied to a dense one. A tensor on a device is
// copied to pinned host memory, and this copy may end after the call (staging.h). Results are copied back when the
// operation has succeeded. All tensors of a call that are not in host memory are on one device.
//
// Thread-safety: one thread at a time. Ownership: keeps all tensors alive whose bytes it returned.
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

/// The type for reducing the tensor's elements. Throws ValueError if they cannot be reduced.
DType reducibleTypeOf(const at::Tensor& tensor);
/// The type for only moving the elements: their own, or bytes if we have no name for it.
DType movableTypeOf(const at::Tensor& tensor);

class Buffers {
 public:
  /// Bytes that the operation only reads.
  std::span<std::byte> read(const at::Tensor& tensor);
  /// Bytes that the operation writes completely.
  std::span<std::byte> write(const at::Tensor& tensor);
  /// Bytes that the operation reads, and then writes completely.
  std::span<std::byte> update(const at::Tensor& tensor);

  /// Copies results to their tensors. Copies to a device only start here; Staging::join() waits for them.
  void finish();
  /// Returns whether the bytes to be read are there; null if they are there at once.
  Readiness readiness() const;
  /// The copies to and from a device; null if no tensor is on a device.
  const std::shared_ptr<Staging>& staging() const { return staging_; }

 private:
  /// The staging for copies to and from the device of `tensor`.
  Staging& stagingOf(const at::Tensor& tensor);
  at::Tensor denseCopy(const at::Tensor& tensor);
  std::span<std::byte> keep(const at::Tensor& dense);

  std::vector<at::Tensor> kept_;
  std::shared_ptr<Staging> staging_;
  std::vector<std::pair<at::Tensor, at::Tensor>> results_;  ///< from, to
};

}  // namespace agspeed::comm
