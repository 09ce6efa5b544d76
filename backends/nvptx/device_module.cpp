// SPDX-License-Identifier: Apache-2.0
#include "backends/nvptx/device_module.h"

#include "backends/nvptx/device_math.h"
#include "backends/nvptx/emit_device_kernel.h"
#include "compiler/kernel/emit/emit_kernel.h"
#include "llvm/IR/Module.h"
#include "llvm/Passes/PassBuilder.h"
#include "llvm/Transforms/InstCombine/InstCombine.h"
#include "llvm/Transforms/Scalar/EarlyCSE.h"
#include "llvm/Transforms/Scalar/LICM.h"
#include "llvm/Transforms/Scalar/LoopPassManager.h"
#include "llvm/Transforms/Scalar/LoopRotation.h"
#include "llvm/Transforms/Scalar/Scalarizer.h"
#include "llvm/Transforms/Scalar/SimplifyCFG.h"
#include "mlir/IR/MLIRContext.h"
#include "mlir/Target/LLVMIR/Dialect/Builtin/BuiltinToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Dialect/LLVMIR/LLVMToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Export.h"
#include "passes/kernel/pipeline.h"

namespace agspeed::backends::nvptx {
namespace {

// Passes of the CPU's pipeline that have another meaning here.
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

// A GPU thread has no vectors but those of loads and stores.
llvm::FunctionPassManager buildPipeline() {
  llvm::FunctionPassManager passes;
  passes.addPass(llvm::EarlyCSEPass(/*UseMemorySSA=*/true));
  passes.addPass(llvm::InstCombinePass());
  passes.addPass(llvm::SimplifyCFGPass());
  llvm::LoopPassManager loops;
  loops.addPass(llvm::LoopRotatePass());
  loops.addPass(llvm::LICMPass(llvm::LICMOptions()));
  passes.addPass(llvm::createFunctionToLoopPassAdaptor(std::move(loops), /*UseMemorySSA=*/true));
  passes.addPass(llvm::ScalarizerPass());
  passes.addPass(llvm::EarlyCSEPass());
  passes.addPass(llvm::InstCombinePass());
  passes.addPass(llvm::SimplifyCFGPass());
  return passes;
}

void optimize(llvm::Module& module) {
  llvm::LoopAnalysisManager loopAnalyses;
  llvm::FunctionAnalysisManager functionAnalyses;
  llvm::CGSCCAnalysisManager callGraphAnalyses;
  llvm::ModuleAnalysisManager moduleAnalyses;
  llvm::PassBuilder builder;
  builder.registerModuleAnalyses(moduleAnalyses);
  builder.registerCGSCCAnalyses(callGraphAnalyses);
  builder.registerFunctionAnalyses(functionAnalyses);
  builder.registerLoopAnalyses(loopAnalyses);
  builder.crossRegisterProxies(loopAnalyses, functionAnalyses, callGraphAnalyses, moduleAnalyses);
  llvm::ModulePassManager passes;
  passes.addPass(llvm::createModuleToFunctionPassAdaptor(buildPipeline()));
  passes.run(module, moduleAnalyses);
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
  mlir::registerBuiltinDialectTranslation(mlirContext);
  mlir::registerLLVMDialectTranslation(mlirContext);
  std::unique_ptr<llvm::Module> translated = mlir::translateModuleToLLVMIR(*module, context);
  if (!translated) return internalError("the GPU kernel's MLIR could not be translated to LLVM IR");
  optimize(*translated);
  return translated;
}

}  // namespace agspeed::backends::nvptx
