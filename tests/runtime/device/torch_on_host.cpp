// SPDX-License-Identifier: Apache-2.0
#include "tests/runtime/device/torch_on_host.h"

#include <ATen/ATen.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <mutex>
#include <vector>

namespace agspeed::runtime::device {
namespace {

const c10::Device kGpu(c10::DeviceType::CUDA, 0);
const char* (*waitFor)(void*) = nullptr;
thread_local void* currentStream = nullptr;
int64_t operatorsUntilFailure = -1;

// Freed tensors that queued work may still use. They are kept until that work has been waited for.
std::mutex freedMutex;
std::vector<at::Tensor> freed;

void keepFreed(void* tensor) {
  const std::unique_ptr<at::Tensor> owned(static_cast<at::Tensor*>(tensor));
  const std::lock_guard lock(freedMutex);
  freed.push_back(std::move(*owned));
}

void wait() {
  const char* lost = waitFor(currentStream);
  std::vector<at::Tensor> unused;  // freed without the lock, because freeing one may free others
  {
    const std::lock_guard lock(freedMutex);
    unused.swap(freed);
  }
  TORCH_CHECK(lost == nullptr, "CUDA error: ", lost, "\nCUDA kernel errors might be reported at some later call");
}

c10::Stream streamOf(void* handle) {
  return c10::Stream(c10::Stream::UNSAFE, kGpu, static_cast<c10::StreamId>(reinterpret_cast<intptr_t>(handle)));
}

using Clock = std::chrono::steady_clock;

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return c10::DeviceType::CUDA; }
  c10::Device exchangeDevice(c10::Device) const override { return kGpu; }
  c10::Device getDevice() const override { return kGpu; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device) const override { return streamOf(currentStream); }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    return streamOf(std::exchange(currentStream, getStreamNativeHandle(stream)));
  }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  c10::Stream getDefaultStream(c10::Device) const override { return streamOf(nullptr); }

  // An event holds the time at which its stream had finished all earlier work.
  void record(void** event, const c10::Stream& stream, c10::DeviceIndex, c10::EventFlag) const override {
    waitFor(getStreamNativeHandle(stream));
    if (*event == nullptr) *event = new Clock::time_point;
    *static_cast<Clock::time_point*>(*event) = Clock::now();
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override {}
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    delete static_cast<Clock::time_point*>(event);
  }
  double elapsedTime(void* begin, void* end, c10::DeviceIndex) const override {
    const auto time = [](void* event) { return *static_cast<Clock::time_point*>(event); };
    return std::chrono::duration<double, std::milli>(time(end) - time(begin)).count();
  }
  void synchronizeStream(const c10::Stream& stream) const override { waitFor(getStreamNativeHandle(stream)); }
  void synchronizeDevice(c10::DeviceIndex) const override { waitFor(currentStream); }
  void* getStreamNativeHandle(c10::Stream stream) const override { return reinterpret_cast<void*>(stream.id()); }
};

// Returns a tensor with the same memory and another device. The new tensor keeps the old one alive.
at::Tensor rewrap(const at::Tensor& tensor, c10::Device device) {
  const auto key = device.is_cpu() ? c10::DispatchKey::CPU : c10::DispatchKey::CUDA;
  void* data = const_cast<void*>(tensor.const_data_ptr());
  c10::DataPtr owner(data, new at::Tensor(tensor), &keepFreed, device);
  const size_t bytes = tensor.storage().nbytes() - static_cast<size_t>(tensor.storage_offset()) * tensor.itemsize();
  c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, std::move(owner), nullptr, /*resizable=*/false);
  at::Tensor wrapped =
      at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), tensor.dtype());
  wrapped.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides());
  return wrapped;
}

at::Tensor toHost(const at::Tensor& tensor) {
  return tensor.defined() && !tensor.is_cpu() ? rewrap(tensor, c10::kCPU) : tensor;
}

// Runs any operator on the CPU, and exchanges tensors and devices on the way in and out.
void callOnHost(const c10::OperatorHandle& op, c10::Stack* stack) {
  wait();
  TORCH_CHECK_WITH(OutOfMemoryError, operatorsUntilFailure < 0 || operatorsUntilFailure-- > 0, "CUDA out of memory");
  const auto& schema = op.schema();
  const size_t numArguments = schema.arguments().size();
  std::vector<c10::IValue> given(stack->end() - static_cast<ptrdiff_t>(numArguments), stack->end());
  for (c10::IValue& value : *stack) {
    if (value.isTensor()) value = toHost(value.toTensor());
    if (value.isDevice()) value = c10::Device(c10::kCPU);
    if (!value.isTensorList()) continue;
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(toHost(tensor));
    value = list;
  }
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  for (size_t i = 0; i < stack->size(); ++i) {
    c10::IValue& value = (*stack)[i];
    if (!value.isTensor() || !value.toTensor().defined()) continue;
    const at::Tensor result = value.toTensor();
    const c10::AliasInfo* alias = schema.returns()[i].alias_info();
    if (alias == nullptr || !alias->isWrite()) {
      value = rewrap(result, kGpu);
      continue;
    }
    const auto same = std::find_if(given.begin(), given.end(), [&](const c10::IValue& argument) {
      return argument.isTensor() && argument.toTensor().defined() && !argument.toTensor().is_cpu() &&
             result.numel() > 0 && argument.toTensor().const_data_ptr() == result.const_data_ptr() &&
             argument.toTensor().sizes() == result.sizes() && argument.toTensor().strides() == result.strides();
    });
    value = same != given.end() ? same->toTensor() : rewrap(result, kGpu);
  }
}

}  // namespace

void installTorchOnHost(const char* (*wait)(void* stream)) {
  static Guard guard;
  waitFor = wait;
  c10::impl::device_guard_impl_registry[static_cast<size_t>(c10::DeviceType::CUDA)].store(&guard);
  static torch::Library library(torch::Library::IMPL, "_", c10::DispatchKey::CUDA, __FILE__, __LINE__);
  static torch::Library aten(torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__);
  static const bool once = [] {
    library.fallback(torch::CppFunction::makeFromBoxedFunction<&callOnHost>());
    // Torch has one kernel for all devices, which selects by a table.
    aten.impl("copy_", torch::CppFunction::makeFromBoxedFunction<&callOnHost>());
    for (const c10::OperatorName& name :
         c10::Dispatcher::singleton().getAllOpNamesForDispatchKey(c10::DispatchKey::CUDA)) {
      if (name.name.rfind("aten::", 0) != 0 || name.name == "aten::copy_") continue;
      aten.impl(c10::toString(name).c_str(), torch::CppFunction::makeFromBoxedFunction<&callOnHost>());
    }
    return true;
  }();
  static_cast<void>(once);
}

void setCurrentStream(void* stream) { currentStream = stream; }
void failOperator(int64_t after) { operatorsUntilFailure = after; }

at::Tensor toCuda(const at::Tensor& tensor) { return rewrap(tensor.clone(), kGpu); }

}  // namespace agspeed::runtime::device
