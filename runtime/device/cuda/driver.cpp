// SPDX-License-Identifier: Apache-2.0
#include "runtime/device/cuda/driver.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>

namespace agspeed::runtime::device::cuda {
namespace {

constexpr std::array kStickyResults = {kIllegalAddress,     kLaunchTimeout,     kAssert,
                                       kIllegalInstruction, kMisalignedAddress, kLaunchFailed};
constexpr std::array kUnusableCode = {kInvalidImage, kNoBinaryForGpu, kInvalidPtx, kUnsupportedPtxVersion, kNotFound};
constexpr std::array kNoDeviceHere = {kNoDevice, kInvalidDevice, kSystemNotReady, kCompatNotSupported,
                                      kDevicesUnavailable};

template <size_t N>
bool isOneOf(const std::array<Result, N>& results, int result) {
  return std::find(results.begin(), results.end(), result) != results.end();
}

template <typename Function>
bool resolve(void* library, const char* symbol, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, symbol));
  return function != nullptr;
}

}  // namespace

bool isSticky(int result) { return isOneOf(kStickyResults, result); }

StatusOr<std::shared_ptr<const CudaDriver>> CudaDriver::open(const std::string& library) {
  void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    return unavailable("no NVIDIA driver: {} cannot be opened; install it, or train on the CPU", library);
  }
  std::shared_ptr<CudaDriver> driver(new CudaDriver(handle));
#define AG_CUDA_ENTRY(symbol, parameters)                                                                           \
  if (!resolve(handle, #symbol, driver->symbol)) {                                                                  \
    return unsupported("{} has no {}: the driver is older than CUDA 12, or it is not a driver; update it", library, \
                       std::string(#symbol));                                                                       \
  }
#include "runtime/device/cuda/driver_entries.def"
#undef AG_CUDA_ENTRY
  AG_RETURN_IF_ERROR(driver->statusOf(driver->cuInit(0), "starting the NVIDIA driver"));
  AG_RETURN_IF_ERROR(driver->statusOf(driver->cuDriverGetVersion(&driver->version_), "asking for its version"));
  AG_RETURN_IF_ERROR(driver->statusOf(driver->cuDeviceGetCount(&driver->numDevices_), "counting GPUs"));
  if (driver->numDevices_ == 0) return unavailable("the NVIDIA driver shows no GPU: is CUDA_VISIBLE_DEVICES empty?");
  return std::shared_ptr<const CudaDriver>(std::move(driver));
}

CudaDriver::~CudaDriver() { dlclose(library_); }

Status CudaDriver::statusOf(int result, std::string_view what) const {
  if (result == kSuccess) return {};
  const char* known = nullptr;
  if (cuGetErrorString(result, &known) != kSuccess || known == nullptr) known = "unknown error";
  const std::string text = formatText("{} failed: {} (CUDA error {})", what, known, result);
  if (result == kOutOfMemory || result == kLaunchOutOfResources) return resourceExhausted(text);
  if (isOneOf(kUnusableCode, result)) return unsupported(text);
  if (isOneOf(kNoDeviceHere, result)) return unavailable(text);
  if (result == kNotInitialized) {
    return unavailable(text + "; a process that was forked after CUDA had started cannot use it: spawn it instead");
  }
  if (isSticky(result)) return internalError(text + "; the context is lost, start the process anew");
  return internalError(text);
}

}  // namespace agspeed::runtime::device::cuda
