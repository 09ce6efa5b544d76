// SPDX-License-Identifier: Apache-2.0
#include "compiler/kernel/kernel_compiler.h"

#include "compiler/kernel/emit/emit_kernel.h"
#include "compiler/kernel/object/object_emitter.h"
#include "mlir/IR/MLIRContext.h"
#include "passes/kernel/pipeline.h"

namespace agspeed::compiler {

StatusOr<std::string> compileKernel(const Cluster& cluster, const std::string& symbol, const CompileOptions& options) {
  mlir::MLIRContext context(mlir::MLIRContext::Threading::DISABLED);
  loadKernelDialects(context);
  AG_ASSIGN_OR_RETURN(mlir::OwningOpRef<mlir::ModuleOp> module, emitKernel(context, cluster, symbol));
  passes::PassFunnel funnel(options, symbol, *module, cluster.toString());
  AG_RETURN_IF_ERROR(passes::lowerKernel(funnel));
  return emitObject(*module, funnel);
}

}  // namespace agspeed::compiler
