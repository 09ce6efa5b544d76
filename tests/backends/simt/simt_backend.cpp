// SPDX-License-Identifier: Apache-2.0
#include "tests/backends/simt/simt_backend.h"

#include <gtest/gtest.h>

#include "backends/nvptx/kernel_plan.h"
#include "tests/backends/simt/host_module.h"

namespace agspeed::simt {
namespace {

using backends::nvptx::KernelPlan;

struct Kernel {
  KernelPlan plan;
  std::unique_ptr<Module> module;
};

class Library : public runtime::HostKernelLibrary {
 public:
  explicit Library(std::vector<Kernel> kernels) : kernels_(std::move(kernels)) {}
  size_t numKernels() const override { return kernels_.size(); }
  runtime::KernelFunction kernel(size_t) const override { return nullptr; }

  void launch(size_t index, void* const* pointers, const int64_t* integers, int64_t begin, int64_t end) const override {
    const Kernel& kernel = kernels_[index];
    auto shape = backends::nvptx::shapeLaunch(kernel.plan, integers, begin, end);
    ASSERT_TRUE(shape.hasValue()) << shape.status().toString();
    if (shape->numBlocks == 0) return;
    backends::nvptx::ParameterBlock parameters;
    backends::nvptx::fillParameters(kernel.plan, pointers, integers, begin, end, parameters);
    std::string name = backends::nvptx::entryName("kernel", shape->entry);
    Status status =
        kernel.module->launch(name, {shape->numBlocks, 1, 1}, {shape->blockX, shape->blockY, 1}, 0, parameters.data());
    ASSERT_TRUE(status.isOk()) << status.toString();
  }

 private:
  std::vector<Kernel> kernels_;
};

}  // namespace

StatusOr<std::shared_ptr<const runtime::KernelLibrary>> build(const std::vector<compiler::Cluster>& clusters,
                                                              const compiler::CompileOptions&, runtime::CompileStats&) {
  std::vector<Kernel> kernels;
  for (const compiler::Cluster& cluster : clusters) {
    AG_ASSIGN_OR_RETURN(KernelPlan plan, backends::nvptx::planKernel(cluster));
    AG_ASSIGN_OR_RETURN(std::unique_ptr<Module> module, compileForHost(cluster, "kernel"));
    kernels.push_back({std::move(plan), std::move(module)});
  }
  return std::shared_ptr<const runtime::KernelLibrary>(std::make_shared<Library>(std::move(kernels)));
}

}  // namespace agspeed::simt
