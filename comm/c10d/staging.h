// SPDX-License-Identifier: Apache-2.0
// Staging: copies one call's tensors between a device and pinned host memory. The network reads and writes host memory
// only.
//
// Copies run on a separate stream. They use torch's generic streams and events. So every device with streams and events
// in torch is supported, and the build needs no device toolkit. The stream first waits for the work that is queued on
// the caller's current stream. After join(), the current stream waits for the copies of results. No thread of the host
// ever waits for a device.
//
// Thread-safety: one thread at a time. The memory of tensors stays allocated until their copies are complete
// (recordDataPtrOnStream).
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include "runtime/base/status.h"

namespace agspeed::comm::c10d {

class Staging {
 public:
  /// Takes a stream of `device`, which first waits for this thread's current stream. Throws if torch has no streams for
  /// the device.
  explicit Staging(at::Device device);

  const c10::Stream& stream() const { return stream_; }

  /// Returns an uninitialized, dense tensor of the size of `tensor` in pinned host memory.
  static at::Tensor reserve(const at::Tensor& tensor);
  /// Starts to copy `tensor` to a dense host tensor, and returns that tensor. Its bytes are valid once isFetched()
  /// returns true.
  at::Tensor fetch(const at::Tensor& tensor);
  /// Returns whether all copies of fetch() are complete, or an error if the device failed.
  StatusOr<bool> isFetched() const;
  /// Starts to copy the host tensor `from` to `to` on the device.
  void deliver(const at::Tensor& from, const at::Tensor& to);
  /// Makes the current stream wait until all copies of deliver() are complete.
  void join() const;

 private:
  /// Keeps the tensor's memory allocated until the stream's copies are complete.
  void use(const at::Tensor& tensor) const;

  const at::Device device_;
  const c10::Stream stream_;
  c10::Event fetched_, delivered_;
};

}  // namespace agspeed::comm::c10d
