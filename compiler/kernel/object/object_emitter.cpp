// SPDX-License-Identifier: Apache-2.0
#include "compiler/kernel/object/object_emitter.h"

#include "compiler/kernel/object/host_target.h"
#include "compiler/kernel/object/masked_stores.h"
#include "llvm/IR/LegacyPassManager.h"
#include "llvm/IR/Module.h"
#include "llvm/Support/raw_ostream.h"
#include "llvm/Target/TargetMachine.h"
#include "llvm/Transforms/Utils/Cloning.h"
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

// Code generation changes the module.
StatusOr<std::string> generateCode(llvm::Module& module, llvm::TargetMachine& machine, llvm::CodeGenFileType type) {
  llvm::SmallString<0> code;
  llvm::raw_svector_ostream stream(code);
  llvm::legacy::PassManager codegen;
  if (machine.addPassesToEmitFile(codegen, stream, nullptr, type)) {
    return internalError("LLVM cannot emit code for " + machine.getTargetTriple().str());
  }
  codegen.run(module);
  return code.str().str();
}

std::string assemblyOf(const llvm::Module& module, llvm::TargetMachine& machine) {
  const std::unique_ptr<llvm::Module> copy = llvm::CloneModule(module);
  StatusOr<std::string> text = generateCode(*copy, machine, llvm::CodeGenFileType::AssemblyFile);
  return text.hasValue() ? *std::move(text) : std::string(text.status().message()) + "\n";
}

}  // namespace

StatusOr<std::string> emitObject(mlir::ModuleOp module, const passes::PassFunnel& funnel) {
  AG_ASSIGN_OR_RETURN(auto machine, createHostTargetMachine());
  llvm::LLVMContext context;
  AG_ASSIGN_OR_RETURN(std::unique_ptr<llvm::Module> translated, passes::translateKernel(module, context));
  translated->setDataLayout(machine->createDataLayout());
  translated->setTargetTriple(machine->getTargetTriple());
  setFunctionAttributes(*translated, *machine);
  passes::cleanUpKernel(*translated, machine.get(), passes::Vectors::kKept);
  splitMaskedStores(*translated, *machine);
  funnel.dumpCode("ll", [&] { return passes::toString(*translated); });
  funnel.dumpCode("s", [&] { return assemblyOf(*translated, *machine); });
  AG_ASSIGN_OR_RETURN(std::string object, generateCode(*translated, *machine, llvm::CodeGenFileType::ObjectFile));
  funnel.dumpCode("o", [&] { return object; });
  return object;
}

}  // namespace agspeed::compiler
