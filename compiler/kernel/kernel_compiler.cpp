// SPDX-License-Identifier: Apache-2.0
#include "compiler/kernel/kernel_compiler.h"

#include "compiler/kernel/emit/emit_kernel.h"
#include "compiler/kernel/object/object_emitter.h"
#include "mlir/IR/MLIRContext.h"
#include "passes/kernel/funnel.h"
#include "passes/kernel/pipeline.h"

namespace agspeed::compiler {

StatusOr<std::string> compileKernel(const Cluster& cluster, const std::string& symbol, const KernelOptions& options) {
  mlir::MLIRContext context(mlir::MLIRContext::Threading::DISABLED);
  loadKernelDialects(context);
  AG_ASSIGN_OR_RETURN(mlir::OwningOpRef<mlir::ModuleOp> module, emitKernel(context, cluster, symbol));
  PassFunnel funnel({options.dumpDir, options.disabledPasses, options.verifyEachPass, symbol, cluster.toString()});
  AG_RETURN_IF_ERROR(lowerKernel(*module, funnel));
  funnel.dumpTimings();
  return emitObject(*module);
}

}  // namespace agspeed::compiler
