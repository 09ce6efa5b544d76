// SPDX-License-Identifier: Apache-2.0
#include "compiler/tools/kernel_tool.h"

#include "compiler/kernel/emit/emit_kernel.h"
#include "mlir/IR/MLIRContext.h"
#include "mlir/Parser/Parser.h"
#include "passes/kernel/pipeline.h"

namespace agspeed::compiler {
namespace {

using Module = mlir::OwningOpRef<mlir::ModuleOp>;

StatusOr<Module> readModule(mlir::MLIRContext& context, const std::string& text) {
  if (text.starts_with("cluster")) {
    AG_ASSIGN_OR_RETURN(Cluster cluster, Cluster::parse(text));
    AG_RETURN_IF_ERROR(cluster.verify());
    return emitKernel(context, cluster, "kernel");
  }
  Module module = mlir::parseSourceString<mlir::ModuleOp>(text, &context);
  if (!module) return invalidArgument("the input is neither a cluster nor an MLIR module");
  return module;
}

Status runPass(const std::string& name, passes::PassFunnel& funnel) {
  for (const passes::KernelPass& pass : passes::kernelPasses()) {
    if (pass.name == name) return funnel.run(name, pass.create());
  }
  return invalidArgument("there is no kernel pass named \"" + name + "\"");
}

}  // namespace

StatusOr<std::string> runKernelTool(const std::string& text, const KernelToolOptions& options) {
  mlir::MLIRContext context(mlir::MLIRContext::Threading::DISABLED);
  loadKernelDialects(context);
  AG_ASSIGN_OR_RETURN(Module module, readModule(context, text));
  passes::PassFunnel funnel(options.compile, "kernel", *module, text);
  for (const std::string& pass : options.passes) AG_RETURN_IF_ERROR(runPass(pass, funnel));
  if (options.lowers) AG_RETURN_IF_ERROR(passes::lowerKernel(funnel));
  std::string result;
  llvm::raw_string_ostream stream(result);
  module->print(stream);
  return result;
}

}  // namespace agspeed::compiler
