// SPDX-License-Identifier: Apache-2.0
// Staging: the way of one call's tensors between a device and pinned host memory, which the network works on.
//
// Copies run on a stream of their own, by torch's generic streams and events, so that any device that torch has those
// for is served and nothing of its toolkit is needed to build. That stream first waits for what the caller's current
// stream holds at the call; whoever wants the results lets its own current stream wait. No thread ever waits for a
// device.
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
  /// Of a call that is made now, by the thread whose current stream of `device` counts. Throws where torch has no
  /// streams for the device.
  explicit Staging(at::Device device);

  const c10::Stream& stream() const { return stream_; }

  /// A dense host tensor of the size of `tensor`, its elements undefined.
  static at::Tensor reserve(const at::Tensor& tensor);
  /// The same with the elements of `tensor`, once isFetched().
  at::Tensor fetch(const at::Tensor& tensor);
  /// Whether everything that fetch() was asked for is there; fails where the device did.
  StatusOr<bool> isFetched() const;
  /// Starts to copy the host tensor `from` to `to` on the device.
  void deliver(const at::Tensor& from, const at::Tensor& to);
  /// The current stream goes on when everything is delivered.
  void join() const;

 private:
  void use(const at::Tensor& tensor) const;

  const at::Device device_;
  const c10::Stream stream_;
  c10::Event fetched_, delivered_;
};

}  // namespace agspeed::comm
