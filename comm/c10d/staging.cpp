// SPDX-License-Identifier: Apache-2.0
#include "comm/c10d/staging.h"

#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <exception>

#include "comm/c10d/arguments.h"

namespace agspeed::comm::c10d {

using c10::impl::VirtualGuardImpl;

Staging::Staging(at::Device device)
    : device_(device),
      stream_(VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device, /*isHighPriority=*/true)),
      fetched_(device.type()),
      delivered_(device.type()) {
  c10::Event called(device.type());
  called.record(VirtualGuardImpl(device.type()).getStream(device));
  called.block(stream_);
}

at::Tensor Staging::reserve(const at::Tensor& tensor) {
  const auto onHost = tensor.options().device(at::kCPU).requires_grad(false);
  return at::empty(tensor.sizes(), onHost.pinned_memory(true).memory_format(at::MemoryFormat::Contiguous));
}

at::Tensor Staging::fetch(const at::Tensor& tensor) {
  const c10::StreamGuard guard(stream_);
  at::Tensor copy = reserve(tensor);
  copy.copy_(tensor.detach(), /*non_blocking=*/true);
  use(tensor);
  fetched_.record(stream_);
  return copy;
}

StatusOr<bool> Staging::isFetched() const {
  try {
    return fetched_.query();
  } catch (const std::exception& error) {
    return unavailable("device {} failed while a tensor was copied to the host: {}", device_.str(), messageOf(error));
  }
}

void Staging::deliver(const at::Tensor& from, const at::Tensor& to) {
  const c10::StreamGuard guard(stream_);
  to.copy_(from, /*non_blocking=*/true);
  use(to);
  delivered_.record(stream_);
}

void Staging::join() const { delivered_.block(VirtualGuardImpl(device_.type()).getStream(device_)); }

void Staging::use(const at::Tensor& tensor) const {
  VirtualGuardImpl(device_.type()).recordDataPtrOnStream(tensor.storage().data_ptr(), stream_);
}

}  // namespace agspeed::comm::c10d
