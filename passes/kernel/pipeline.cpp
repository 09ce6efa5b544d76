// SPDX-License-Identifier: Apache-2.0
#include "passes/kernel/pipeline.h"

#include "passes/kernel/passes.h"

namespace agspeed::passes {
namespace {

constexpr KernelPass kKernelPasses[] = {
#define AG_KERNEL_PASS(name, stem, need) {name, create##stem##Pass},
#include "passes/passes.def"
};

}  // namespace

std::span<const KernelPass> kernelPasses() { return kKernelPasses; }

Status lowerKernel(PassFunnel& funnel) {
  for (const KernelPass& pass : kKernelPasses) AG_RETURN_IF_ERROR(funnel.run(pass.name, pass.create()));
  funnel.dumpTimings();
  return {};
}

}  // namespace agspeed::passes
