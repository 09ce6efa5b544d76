// SPDX-License-Identifier: Apache-2.0
// Which masked stores are split, and for which targets. Other tests of kernels compare what split stores write.
#include "compiler/kernel/object/masked_stores.h"

#include <gtest/gtest.h>

#include "compiler/kernel/object/host_target.h"
#include "llvm/AsmParser/Parser.h"
#include "llvm/IR/Module.h"
#include "llvm/MC/TargetRegistry.h"
#include "llvm/Support/SourceMgr.h"
#include "llvm/Target/TargetMachine.h"
#include "passes/kernel/llvm_cleanup.h"

namespace agspeed::compiler {
namespace {

constexpr char kModule[] = R"(
define void @tail(<16 x float> %values, ptr %place, <16 x i1> %mask) {
  call void @llvm.masked.store.v16f32.p0(<16 x float> %values, ptr align 4 %place, <16 x i1> %mask)
  ret void
}
)";

// The text of the module for a target with these features, after the split; empty if this LLVM lacks the target.
std::string splitFor(const std::string& features) {
  auto host = createHostTargetMachine();
  if (!host.hasValue() || !(*host)->getTargetTriple().isX86()) return "";
  const std::unique_ptr<llvm::TargetMachine> machine((*host)->getTarget().createTargetMachine(
      (*host)->getTargetTriple(), "x86-64", features, llvm::TargetOptions(), llvm::Reloc::PIC_));
  llvm::LLVMContext context;
  llvm::SMDiagnostic diagnostic;
  const std::unique_ptr<llvm::Module> module = llvm::parseAssemblyString(kModule, diagnostic, context);
  EXPECT_NE(module, nullptr) << diagnostic.getMessage().str();
  splitMaskedStores(*module, *machine);
  return passes::toString(*module);
}

TEST(MaskedStores, AreSplitIntoRegistersWithoutMasksOfTheirOwn) {
  const std::string text = splitFor("+avx,+avx2");
  if (text.empty()) GTEST_SKIP() << "LLVM generates no x86-64 code here";
  EXPECT_EQ(text.find("call void @llvm.masked.store.v16f32"), std::string::npos) << text;
  EXPECT_NE(text.find("store <8 x float>"), std::string::npos) << text;
  EXPECT_NE(text.find("call void @llvm.masked.store.v8f32"), std::string::npos) << text;
}

TEST(MaskedStores, StayWholeIfRegistersHaveMasks) {
  const std::string text = splitFor("+avx,+avx2,+avx512f,+avx512vl");
  if (text.empty()) GTEST_SKIP() << "LLVM generates no x86-64 code here";
  EXPECT_NE(text.find("call void @llvm.masked.store.v16f32"), std::string::npos) << text;
  EXPECT_EQ(text.find("store <8 x float>"), std::string::npos) << text;
}

}  // namespace
}  // namespace agspeed::compiler
