// SPDX-License-Identifier: Apache-2.0
#include "compiler/kernel/object/object_emitter.h"

#include "compiler/kernel/object/host_target.h"
#include "llvm/IR/LegacyPassManager.h"
#include "llvm/IR/Module.h"
#include "llvm/Support/raw_ostream.h"
#include "llvm/Target/TargetMachine.h"
#include "passes/kernel/llvm_cleanup.h"

namespace agspeed::compiler {
namespace {

void setFunctionAttributes(llvm::Module& module, const llvm::TargetMachine& machine) {
  for (llvm::Function& function : module) {
    if (function.isDeclaration()) continue;
    function.addFnAttr(llvm::Attribute::NoUnwind);
    function.addFnAttr("target-cpu", machine.getTargetCPU());
    function.addFnAttr("target-features", machine.getTargetFeatureString());
    function.addFnAttr("prefer-vector-width", "512");
  }
}

StatusOr<std::string> generateCode(llvm::Module& module, llvm::TargetMachine& machine) {
  llvm::SmallString<0> object;
  llvm::raw_svector_ostream stream(object);
  llvm::legacy::PassManager codegen;
  if (machine.addPassesToEmitFile(codegen, stream, nullptr, llvm::CodeGenFileType::ObjectFile)) {
    return internalError("LLVM cannot emit object files for " + machine.getTargetTriple().str());
  }
  codegen.run(module);
  return object.str().str();
}

}  // namespace

StatusOr<std::string> emitObject(mlir::ModuleOp module) {
  AG_ASSIGN_OR_RETURN(auto machine, createHostTargetMachine());
  llvm::LLVMContext context;
  AG_ASSIGN_OR_RETURN(std::unique_ptr<llvm::Module> translated, passes::translateKernel(module, context));
  translated->setDataLayout(machine->createDataLayout());
  translated->setTargetTriple(machine->getTargetTriple());
  setFunctionAttributes(*translated, *machine);
  passes::cleanUpKernel(*translated, machine.get(), passes::Vectors::kKept);
  return generateCode(*translated, *machine);
}

}  // namespace agspeed::compiler
