// SPDX-License-Identifier: Apache-2.0
#include "compiler/kernel/object/host_target.h"

#include <mutex>
#include <string>

#include "llvm/ADT/StringMap.h"
#include "llvm/MC/TargetRegistry.h"
#include "llvm/Support/TargetSelect.h"
#include "llvm/Target/TargetMachine.h"
#include "llvm/TargetParser/Host.h"
#include "llvm/TargetParser/SubtargetFeature.h"

namespace agspeed::compiler {
namespace {

void initializeHostTarget() {
  static std::once_flag once;
  std::call_once(once, [] {
    llvm::InitializeNativeTarget();
    llvm::InitializeNativeTargetAsmPrinter();
    llvm::InitializeNativeTargetAsmParser();
  });
}

std::string hostFeatures() {
  llvm::SubtargetFeatures features;
  for (const auto& feature : llvm::sys::getHostCPUFeatures()) features.AddFeature(feature.first(), feature.second);
  return features.getString();
}

}  // namespace

std::string hostTargetKey() {
  static const std::string key =
      llvm::sys::getProcessTriple() + ";" + llvm::sys::getHostCPUName().str() + ";" + hostFeatures();
  return key;
}

StatusOr<std::unique_ptr<llvm::TargetMachine>> createHostTargetMachine() {
  initializeHostTarget();
  llvm::Triple triple(llvm::sys::getProcessTriple());
  std::string error;
  const llvm::Target* target = llvm::TargetRegistry::lookupTarget(triple, error);
  if (!target) return unsupported("LLVM has no code generator for this machine (" + triple.str() + "): " + error);
  std::unique_ptr<llvm::TargetMachine> machine(
      target->createTargetMachine(triple, llvm::sys::getHostCPUName(), hostFeatures(), llvm::TargetOptions(),
                                  llvm::Reloc::PIC_, llvm::CodeModel::Small, llvm::CodeGenOptLevel::Default));
  if (!machine) return unsupported("LLVM cannot create a code generator for " + triple.str());
  return machine;
}

}  // namespace agspeed::compiler
