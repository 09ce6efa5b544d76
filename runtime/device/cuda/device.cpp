// SPDX-License-Identifier: Apache-2.0
#include "runtime/device/cuda/device.h"

#include <algorithm>
#include <utility>

#include "runtime/base/format.h"
#include "runtime/base/log.h"

namespace agspeed::runtime::device::cuda {
namespace {

constexpr int kMajor = 75;                   // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
constexpr int kMinor = 76;                   // ..._MINOR
constexpr int kLocalBytes = 3;               // CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES
constexpr int kRegisters = 4;                // CU_FUNC_ATTRIBUTE_NUM_REGS
constexpr int kDynamicShared = 8;            // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
constexpr uint32_t kPlainShared = 48 << 10;  // a kernel has to request more

}  // namespace

StatusOr<std::shared_ptr<const CudaDevice>> CudaDevice::open(std::shared_ptr<const CudaDriver> driver, int index) {
  std::shared_ptr<CudaDevice> device(new CudaDevice(std::move(driver)));
  const CudaDriver& cuda = *device->driver_;
  AG_RETURN_IF_ERROR(cuda.statusOf(cuda.cuDeviceGet(&device->device_, index), formatText("finding GPU {}", index)));
  int major = 0, minor = 0;
  AG_RETURN_IF_ERROR(cuda.statusOf(cuda.cuDeviceGetAttribute(&major, kMajor, device->device_), "asking a GPU"));
  AG_RETURN_IF_ERROR(cuda.statusOf(cuda.cuDeviceGetAttribute(&minor, kMinor, device->device_), "asking a GPU"));
  device->capability_ = 10 * major + minor;
  if (device->capability_ < kOldestCapability) {
    return unsupported("GPU {} is sm_{}, and kernels are made for sm_{} and later", index, device->capability_,
                       kOldestCapability);
  }
  void* context = nullptr;
  AG_RETURN_IF_ERROR(
      cuda.statusOf(cuda.cuDevicePrimaryCtxRetain(&context, device->device_), formatText("opening GPU {}", index)));
  device->context_ = context;
  return std::shared_ptr<const CudaDevice>(std::move(device));
}

CudaDevice::~CudaDevice() {
  if (context_ != nullptr) driver_->cuDevicePrimaryCtxRelease_v2(device_);
}

Status CudaDevice::makeCurrent() const {
  void* current = nullptr;
  AG_RETURN_IF_ERROR(driver_->statusOf(driver_->cuCtxGetCurrent(&current), "asking for the current context"));
  if (current == context_) return {};
  return driver_->statusOf(driver_->cuCtxSetCurrent(context_), "making a GPU current");
}

StatusOr<std::shared_ptr<const CudaModule>> CudaDevice::load(std::string image) const {
  AG_RETURN_IF_ERROR(makeCurrent());
  void* module = nullptr;
  AG_RETURN_IF_ERROR(driver_->statusOf(driver_->cuModuleLoadDataEx(&module, image.c_str(), 0, nullptr, nullptr),
                                       formatText("loading code for sm_{}", capability_)));
  return std::shared_ptr<const CudaModule>(new CudaModule(shared_from_this(), module));
}

CudaModule::~CudaModule() {
  const CudaDriver& cuda = device_->driver();
  const Status current = device_->makeCurrent();  // if the context is lost, its memory is freed anyway
  const Status status = cuda.statusOf(cuda.cuModuleUnload(module_), "unloading code");
  if (!status.isOk() || !current.isOk()) AG_LOG(kInfo, "{}", status.message());
}

StatusOr<CudaKernel> CudaModule::kernel(const std::string& name) const {
  const CudaDriver& cuda = device_->driver();
  AG_RETURN_IF_ERROR(device_->makeCurrent());
  CudaKernel kernel{.name = name};
  const std::string what = formatText("finding kernel {}", name);
  AG_RETURN_IF_ERROR(cuda.statusOf(cuda.cuModuleGetFunction(&kernel.function, module_, name.c_str()), what));
  AG_RETURN_IF_ERROR(cuda.statusOf(cuda.cuFuncGetAttribute(&kernel.numRegisters, kRegisters, kernel.function), what));
  AG_RETURN_IF_ERROR(cuda.statusOf(cuda.cuFuncGetAttribute(&kernel.spilledBytes, kLocalBytes, kernel.function), what));
  return kernel;
}

Status CudaModule::launch(const CudaKernel& kernel, const LaunchShape& shape, void* stream,
                          std::span<void* const> arguments) const {
  const bool isEmpty = std::any_of(shape.grid.begin(), shape.grid.end(), [](uint32_t blocks) { return blocks == 0; });
  if (isEmpty) return {};
  const CudaDriver& cuda = device_->driver();
  AG_RETURN_IF_ERROR(device_->makeCurrent());
  if (shape.sharedBytes > kPlainShared) {
    AG_RETURN_IF_ERROR(
        cuda.statusOf(cuda.cuFuncSetAttribute(kernel.function, kDynamicShared, static_cast<int>(shape.sharedBytes)),
                      formatText("asking for {} bytes of shared memory", shape.sharedBytes)));
  }
  const auto [gridX, gridY, gridZ] = shape.grid;
  const auto [blockX, blockY, blockZ] = shape.block;
  const int result = cuda.cuLaunchKernel(kernel.function, gridX, gridY, gridZ, blockX, blockY, blockZ,
                                         shape.sharedBytes, stream, const_cast<void**>(arguments.data()), nullptr);
  if (result == kSuccess) return {};
  return cuda.statusOf(result, formatText("launching {} ({} blocks)", kernel.name, uint64_t{gridX} * gridY * gridZ));
}

}  // namespace agspeed::runtime::device::cuda
