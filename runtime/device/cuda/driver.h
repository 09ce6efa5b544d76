// SPDX-License-Identifier: Apache-2.0
// CudaDriver: NVIDIA's driver library, opened at run time, so that no binary links to CUDA.
//
// statusOf() is the only place that translates a CUresult for callers. Thread-safety: immutable after open(); the
// driver's own functions may be called from any thread.
// API: CUDA Driver API 12 and 13, "Initialization", "Error Handling".
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "runtime/base/format.h"
#include "runtime/base/status.h"

namespace agspeed::runtime::device::cuda {

inline constexpr const char* kDriverLibrary = "libcuda.so.1";

/// Results that our code handles. The values are the driver's.
enum Result : int {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNotInitialized = 3,
  kNoDevice = 100,
  kInvalidDevice = 101,
  kInvalidContext = 201,
  kInvalidImage = 200,
  kNoBinaryForGpu = 209,
  kInvalidPtx = 218,
  kUnsupportedPtxVersion = 222,
  kNotFound = 500,
  kNotReady = 600,
  kIllegalAddress = 700,
  kLaunchOutOfResources = 701,
  kLaunchTimeout = 702,
  kAssert = 710,
  kIllegalInstruction = 715,
  kMisalignedAddress = 716,
  kLaunchFailed = 719,
  kSystemNotReady = 802,
  kCompatNotSupported = 803,
  kDevicesUnavailable = 46,
  kStreamCaptureUnsupported = 900,
  kStreamCaptureInvalidated = 901,
};

/// Whether the context is unusable after this result.
bool isSticky(int result);

class CudaDriver {
 public:
  /// Opens and initialises the driver. Errors: kUnavailable without a driver or a GPU, kUnsupported for a library that
  /// lacks an entry point; the sentence says what to do.
  static StatusOr<std::shared_ptr<const CudaDriver>> open(const std::string& library = kDriverLibrary);
  CudaDriver(const CudaDriver&) = delete;
  CudaDriver& operator=(const CudaDriver&) = delete;
  ~CudaDriver();

#define AG_CUDA_ENTRY(symbol, parameters) int(*symbol) parameters = nullptr;
#include "runtime/device/cuda/driver_entries.def"
#undef AG_CUDA_ENTRY

  /// OK, or an error that says what failed: kResourceExhausted (no memory), kUnsupported (this code on this device),
  /// kUnavailable (no device for this process), kInternal (all others; the text says "the context is lost" if it is).
  Status statusOf(int result, std::string_view what) const;
  /// The CUDA version that the driver supports, for example 13000.
  int version() const { return version_; }
  int numDevices() const { return numDevices_; }

 private:
  explicit CudaDriver(void* library) : library_(library) {}

  void* library_;
  int version_ = 0;
  int numDevices_ = 0;
};

}  // namespace agspeed::runtime::device::cuda
