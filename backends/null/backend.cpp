// SPDX-License-Identifier: Apache-2.0
#include "backends/null/backend.h"

namespace agspeed::backends::null {
namespace {

void doNothing(void* const*, const int64_t*, int64_t, int64_t) {}

class Library : public runtime::HostKernelLibrary {
 public:
  explicit Library(size_t numKernels) : numKernels_(numKernels) {}
  size_t numKernels() const override { return numKernels_; }
  runtime::KernelFunction kernel(size_t) const override { return doNothing; }
  void launch(size_t, void* const*, const int64_t*, int64_t, int64_t) const override {}

 private:
  size_t numKernels_;
};

}  // namespace

StatusOr<std::shared_ptr<const runtime::KernelLibrary>> build(const std::vector<compiler::Cluster>& clusters,
                                                              const compiler::CompileOptions&, runtime::CompileStats&) {
  return std::shared_ptr<const runtime::KernelLibrary>(std::make_shared<Library>(clusters.size()));
}

}  // namespace agspeed::backends::null
