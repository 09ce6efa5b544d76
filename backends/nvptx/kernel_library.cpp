// SPDX-License-Identifier: Apache-2.0
#include "backends/nvptx/kernel_library.h"

#include <array>

#include "backends/nvptx/kernel_plan.h"
#include "backends/nvptx/ptx.h"
#include "compiler/kernel/kernel_code.h"
#include "runtime/base/check.h"
#include "runtime/base/format.h"
#include "runtime/device/cuda/device.h"

namespace agspeed::backends::nvptx {
namespace {

namespace cuda = runtime::device::cuda;
using compiler::Cluster;
using compiler::CompileOptions;

/// See compiler::loadOrCompile().
constexpr int kGeneratorVersion = 2;

struct LoadedKernel {
  KernelPlan plan;
  std::shared_ptr<const cuda::CudaModule> module;
  std::array<cuda::CudaKernel, kNumEntries> entries;  ///< the entries of the plan
};

class Library final : public runtime::KernelLibrary {
 public:
  explicit Library(std::vector<LoadedKernel> kernels) : kernels_(std::move(kernels)) {}
  size_t numKernels() const override { return kernels_.size(); }
  runtime::KernelFunction kernel(size_t) const override { return nullptr; }
  void launch(size_t, void* const*, const int64_t*, int64_t, int64_t) const override {
    AG_CHECK(false, "kernels for a device are queued on its stream");
  }

  Status enqueue(size_t index, void* const* pointers, const int64_t* integers, int64_t begin, int64_t end,
                 void* stream) const override {
    const LoadedKernel& kernel = kernels_[index];
    AG_ASSIGN_OR_RETURN(LaunchShape shape, shapeLaunch(kernel.plan, integers, begin, end));
    if (shape.numBlocks == 0) return {};
    ParameterBlock parameter;
    fillParameters(kernel.plan, pointers, integers, begin, end, parameter);
    void* const arguments[] = {parameter.data()};
    return kernel.module->launch(kernel.entries[static_cast<size_t>(shape.entry)],
                                 {.grid = {shape.numBlocks, 1, 1}, .block = {shape.blockX, shape.blockY, 1}}, stream,
                                 arguments);
  }

 private:
  std::vector<LoadedKernel> kernels_;
};

StatusOr<LoadedKernel> loadKernel(const cuda::CudaDevice& device, const Cluster& cluster, const CompileOptions& options,
                                  runtime::CompileStats& stats) {
  AG_RETURN_IF_ERROR(cluster.verify());
  const std::string symbol = cluster.name();
  const int capability = device.capability();
  LoadedKernel loaded;
  AG_ASSIGN_OR_RETURN(loaded.plan, planKernel(cluster));
  const auto compile = [&](const std::string& name) {
    return emitPtx(cluster, name, {capability / 10, capability % 10}, options);
  };
  AG_ASSIGN_OR_RETURN(std::string ptx, compiler::loadOrCompile(cluster, formatText("nvptx sm_{}", capability),
                                                               kGeneratorVersion, options, stats, compile));
  AG_ASSIGN_OR_RETURN(loaded.module, device.load(std::move(ptx)));
  for (Entry entry : loaded.plan.entries()) {
    AG_ASSIGN_OR_RETURN(cuda::CudaKernel kernel, loaded.module->kernel(entryName(symbol, entry)));
    if (kernel.spilledBytes > 0) {
      return unsupported("GPU kernel {} keeps {} bytes of each thread in memory for want of registers", kernel.name,
                         kernel.spilledBytes);
    }
    loaded.entries[static_cast<size_t>(entry)] = std::move(kernel);
  }
  return loaded;
}

}  // namespace

StatusOr<std::shared_ptr<const runtime::KernelLibrary>> buildKernels(const std::vector<Cluster>& clusters,
                                                                     const CompileOptions& options,
                                                                     runtime::CompileStats& stats) {
  AG_ASSIGN_OR_RETURN(auto driver, cuda::CudaDriver::open());
  AG_ASSIGN_OR_RETURN(auto device, cuda::CudaDevice::open(std::move(driver), options.device.index));
  std::vector<LoadedKernel> kernels;
  for (const Cluster& cluster : clusters) {
    AG_ASSIGN_OR_RETURN(LoadedKernel kernel, loadKernel(*device, cluster, options, stats));
    kernels.push_back(std::move(kernel));
  }
  return std::shared_ptr<const runtime::KernelLibrary>(std::make_shared<Library>(std::move(kernels)));
}

}  // namespace agspeed::backends::nvptx
