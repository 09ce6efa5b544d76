// SPDX-License-Identifier: Apache-2.0
#include "backends/nvptx/device_module.h"

#include "backends/nvptx/device_math.h"
#include "backends/nvptx/emit_device_kernel.h"
#include "compiler/kernel/emit/emit_kernel.h"
#include "llvm/IR/Module.h"
#include "mlir/IR/MLIRContext.h"
#include "passes/kernel/llvm_cleanup.h"
#include "passes/kernel/pipeline.h"

namespace agspeed::backends::nvptx {
namespace {

// Passes of the CPU's pipeline that are replaced here.
constexpr std::string_view kMathToLibm = "math-to-libm";

Status lowerDeviceKernel(passes::PassFunnel& funnel, mlir::ModuleOp module) {
  AG_RETURN_IF_ERROR(funnel.run("split-math", createSplitMathPass()));
  for (const passes::KernelPass& pass : passes::kernelPasses()) {
    if (pass.name == kMathToLibm) {
      AG_RETURN_IF_ERROR(funnel.run("device-math", createDeviceMathPass()));
      AG_RETURN_IF_ERROR(checkDeviceMath(module));
    } else {
      AG_RETURN_IF_ERROR(funnel.run(pass.name, pass.create()));
    }
  }
  funnel.dumpTimings();
  return {};
}

}  // namespace

StatusOr<std::unique_ptr<llvm::Module>> emitDeviceModule(llvm::LLVMContext& context, const compiler::Cluster& cluster,
                                                         const std::string& symbol,
                                                         const compiler::CompileOptions& options) {
  AG_ASSIGN_OR_RETURN(KernelPlan plan, planKernel(cluster));
  mlir::MLIRContext mlirContext(mlir::MLIRContext::Threading::DISABLED);
  compiler::loadKernelDialects(mlirContext);
  AG_ASSIGN_OR_RETURN(mlir::OwningOpRef<mlir::ModuleOp> module, emitDeviceKernel(mlirContext, cluster, plan, symbol));
  passes::PassFunnel funnel(options, symbol, *module, cluster.toString());
  AG_RETURN_IF_ERROR(lowerDeviceKernel(funnel, *module));
  AG_ASSIGN_OR_RETURN(std::unique_ptr<llvm::Module> translated, passes::translateKernel(*module, context));
  // A GPU thread has vectors only for loads and stores.
  passes::cleanUpKernel(*translated, /*machine=*/nullptr, passes::Vectors::kSplit);
  funnel.dumpCode("ll", [&] { return passes::toString(*translated); });
  return translated;
}

}  // namespace agspeed::backends::nvptx
