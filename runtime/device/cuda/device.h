// SPDX-License-Identifier: Apache-2.0
// CudaDevice and CudaModule: one GPU through its primary context, which torch also uses, and code loaded there.
//
//   auto device = CudaDevice::open(driver, 0).value();
//   auto module = device->load(ptx).value();
//   auto kernel = module->kernel("scale").value();
//   module->launch(kernel, {.grid = {blocks, 1, 1}, .block = {128, 1, 1}}, stream, arguments);
//
// Nothing here waits, allocates memory or makes a stream. Memory is torch's and the stream is the caller's. So launches
// keep torch's order, and become part of a capture that the caller has begun.
// Thread-safety: launch() and kernel() from any thread; both make the context current for the thread. A module must
// outlive the work that was launched from it.
// API: CUDA Driver API, "Primary Context Management", "Module Management", "Execution Control".
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "runtime/base/status.h"
#include "runtime/device/cuda/driver.h"

namespace agspeed::runtime::device::cuda {

/// The oldest capability that kernels are made for.
inline constexpr int kOldestCapability = 75;

class CudaModule;

class CudaDevice : public std::enable_shared_from_this<CudaDevice> {
 public:
  /// Errors: kUnavailable if the device does not exist or its compute mode admits no further process; kUnsupported if
  /// its capability is below kOldestCapability.
  static StatusOr<std::shared_ptr<const CudaDevice>> open(std::shared_ptr<const CudaDriver> driver, int index);
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;
  ~CudaDevice();

  /// Loads PTX (which ends with a zero byte) or a cubin. Errors: kUnsupported with the driver's text for code that it
  /// rejects, kResourceExhausted without memory.
  StatusOr<std::shared_ptr<const CudaModule>> load(std::string image) const;
  /// For example 90 for sm_90.
  int capability() const { return capability_; }
  const CudaDriver& driver() const { return *driver_; }

 private:
  friend class CudaModule;
  explicit CudaDevice(std::shared_ptr<const CudaDriver> driver) : driver_(std::move(driver)) {}
  Status makeCurrent() const;

  std::shared_ptr<const CudaDriver> driver_;
  int device_ = 0;
  int capability_ = 0;
  void* context_ = nullptr;  ///< retained
};

/// Blocks of a grid, threads of a block, and bytes of dynamic shared memory.
struct LaunchShape {
  std::array<uint32_t, 3> grid = {1, 1, 1};
  std::array<uint32_t, 3> block = {1, 1, 1};
  uint32_t sharedBytes = 0;
};

/// A kernel of a module, with the driver's figures. spilledBytes: local memory per thread.
struct CudaKernel {
  void* function = nullptr;
  std::string name;
  int numRegisters = 0;
  int spilledBytes = 0;
};

class CudaModule {
 public:
  CudaModule(const CudaModule&) = delete;
  CudaModule& operator=(const CudaModule&) = delete;
  ~CudaModule();

  /// Errors: kUnsupported if the module has no such kernel.
  StatusOr<CudaKernel> kernel(const std::string& name) const;
  /// Queues a launch on `stream` (a CUstream, as torch's guards return it). An empty grid launches nothing.
  /// `arguments`: the address of each argument's value; the values are copied before this returns.
  Status launch(const CudaKernel& kernel, const LaunchShape& shape, void* stream,
                std::span<void* const> arguments) const;

 private:
  friend class CudaDevice;
  CudaModule(std::shared_ptr<const CudaDevice> device, void* module) : device_(std::move(device)), module_(module) {}

  std::shared_ptr<const CudaDevice> device_;
  void* module_;
};

}  // namespace agspeed::runtime::device::cuda
