// SPDX-License-Identifier: Apache-2.0
// Staging: copies one call's tensors between a device and pinned host memory, on which the network works.
//
// Copies run on a stream of their own. They use torch's generic streams and events. So any device that has these in
// torch works, and the build needs no device toolkit. The stream first waits for work that the caller's current stream
// holds at the call. For results, join() makes the current stream wait. No thread ever waits for a device.
//
// Thread-safety: one thread at a time. Memory of tensors outlives their copies (recordDataPtrOnStream).
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include "runtime/base/status.h"

namespace agspeed::comm {

class Staging {
 public:
  /// For a call that is made now by this thread, with its current stream of `device`. Throws if torch has no streams
  /// for the device.
  explicit Staging(at::Device device);

  const c10::Stream& stream() const { return stream_; }

  /// A dense host tensor of the size of `tensor`, uninitialized.
  static at::Tensor reserve(const at::Tensor& tensor);
  /// Starts to copy `tensor` to a dense host tensor, which is complete once isFetched().
  at::Tensor fetch(const at::Tensor& tensor);
  /// Whether all copies of fetch() have ended; fails if the device failed.
  StatusOr<bool> isFetched() const;
  /// Starts to copy the host tensor `from` to `to` on the device.
  void deliver(const at::Tensor& from, const at::Tensor& to);
  /// Makes the current stream wait until everything is delivered.
  void join() const;

 private:
  void use(const at::Tensor& tensor) const;

  const at::Device device_;
  const c10::Stream stream_;
  c10::Event fetched_, delivered_;
};

}  // namespace agspeed::comm
