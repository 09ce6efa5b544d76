// SPDX-License-Identifier: Apache-2.0
// Buffers: converts the tensors of a call to byte ranges for an operation.
//
// A dense tensor in host memory is used in place. A tensor with gaps or another order in memory is copied to a dense
// one. A tensor on a device is copied to pinned host memory, and the copy may still run after the call (staging.h).
// Results are copied back when the operation has succeeded. A call may use only one device besides the host.
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

namespace agspeed::comm::c10d {

/// Returns the type by which the tensor's elements are reduced. Throws ValueError if they cannot be reduced.
DType reducibleTypeOf(const at::Tensor& tensor);
/// Returns a type by which the tensor's elements are moved: their own type, or bytes if DType does not have it.
DType movableTypeOf(const at::Tensor& tensor);

class Buffers {
 public:
  /// Returns the bytes of a tensor that the operation only reads.
  std::span<std::byte> read(const at::Tensor& tensor);
  /// Returns the bytes of a tensor that the operation writes completely.
  std::span<std::byte> write(const at::Tensor& tensor);
  /// Returns the bytes of a tensor that the operation reads, and then writes completely.
  std::span<std::byte> update(const at::Tensor& tensor);

  /// Copies results to their tensors. Copies to a device only start here. Call Staging::join() to make the current
  /// stream wait for them.
  void finish();
  /// Returns a function that checks whether the copies from a device are complete, or null if no tensor is on a device.
  Readiness readiness() const;
  /// Returns the object that copies to and from a device, or null if no tensor is on a device.
  const std::shared_ptr<Staging>& staging() const { return staging_; }

 private:
  /// Returns the object for copies to and from the device of `tensor`.
  Staging& stagingOf(const at::Tensor& tensor);
  /// Copies the tensor to a dense tensor in host memory.
  at::Tensor denseCopy(const at::Tensor& tensor);
  /// Keeps a dense host tensor alive, and returns its bytes.
  std::span<std::byte> keep(const at::Tensor& dense);

  std::vector<at::Tensor> kept_;
  std::shared_ptr<Staging> staging_;
  std::vector<std::pair<at::Tensor, at::Tensor>> results_;  ///< copies that finish() makes: pairs (from, to)
};

}  // namespace agspeed::comm::c10d
