// SPDX-License-Identifier: Apache-2.0
#include "backends/nvptx/ptx.h"

#include <mutex>

#include "backends/nvptx/device_module.h"
#include "backends/nvptx/kernel_plan.h"
#include "llvm/IR/LegacyPassManager.h"
#include "llvm/IR/Module.h"
#include "llvm/MC/MCSubtargetInfo.h"
#include "llvm/MC/TargetRegistry.h"
#include "llvm/Target/TargetMachine.h"
#include "runtime/base/files/write_file.h"

#if AG_HAS_NVPTX
extern "C" {
void LLVMInitializeNVPTXTargetInfo();
void LLVMInitializeNVPTXTarget();
void LLVMInitializeNVPTXTargetMC();
void LLVMInitializeNVPTXAsmPrinter();
}
#endif

namespace agspeed::backends::nvptx {
namespace {

constexpr const char* kTriple = "nvptx64-nvidia-cuda";
constexpr std::string_view kComment = "// ";
constexpr int kMinCapability = 75;

// The newest GPU up to this one that LLVM knows. Code made for it also runs on later GPUs.
std::string newestKnown(const llvm::Target& target, const llvm::Triple& triple, int number) {
  std::unique_ptr<llvm::MCSubtargetInfo> known(target.createMCSubtargetInfo(triple, "", ""));
  while (number > kMinCapability && !known->isCPUStringValid(formatText("sm_{}", number))) --number;
  return formatText("sm_{}", number);
}

StatusOr<std::unique_ptr<llvm::TargetMachine>> createTargetMachine(Capability capability) {
#if AG_HAS_NVPTX
  static std::once_flag once;
  std::call_once(once, [] {
    LLVMInitializeNVPTXTargetInfo();
    LLVMInitializeNVPTXTarget();
    LLVMInitializeNVPTXTargetMC();
    LLVMInitializeNVPTXAsmPrinter();
  });
#endif
  if (!hasPtxTarget()) return unsupported("the LLVM of this build has no NVPTX target, so there are no GPU kernels");
  int number = 10 * capability.major + capability.minor;
  if (number < kMinCapability) {
    return unsupported("GPU kernels need compute capability 7.5 or newer, not {}.{}", capability.major,
                       capability.minor);
  }
  llvm::Triple triple(kTriple);
  std::string error;
  const llvm::Target* target = llvm::TargetRegistry::lookupTarget(triple, error);
  if (!target) return internalError("LLVM's NVPTX target is not to be found: {}", error);
  llvm::TargetOptions options;
  options.AllowFPOpFusion = llvm::FPOpFusion::Strict;
  std::unique_ptr<llvm::TargetMachine> machine(target->createTargetMachine(triple, newestKnown(*target, triple, number),
                                                                           "", options, llvm::Reloc::PIC_, std::nullopt,
                                                                           llvm::CodeGenOptLevel::Default));
  if (!machine) return unsupported("LLVM cannot create a code generator for sm_{}", number);
  return machine;
}

int maxThreads(Entry entry) { return entry == Entry::kFlat ? kFlatThreads : kMaxGroupThreads; }

// Turns entries into kernels with their parameter by value, and limits their registers by the block size.
void markKernels(llvm::Module& module, const KernelPlan& plan, const std::string& symbol) {
  llvm::LLVMContext& context = module.getContext();
  llvm::Type* block = llvm::ArrayType::get(llvm::Type::getInt64Ty(context), static_cast<uint64_t>(plan.numSlots()));
  for (Entry entry : plan.entries()) {
    llvm::Function* function = module.getFunction(entryName(symbol, entry));
    AG_CHECK(function, "a module without its entry {}", entryName(symbol, entry));
    function->setCallingConv(llvm::CallingConv::PTX_Kernel);
    function->addParamAttr(0, llvm::Attribute::getWithByValType(context, block));
    function->addParamAttr(0, llvm::Attribute::getWithAlignment(context, llvm::Align(8)));
    function->addFnAttr(llvm::Attribute::NoUnwind);
    function->addFnAttr("nvvm.maxntid", std::to_string(maxThreads(entry)));
    function->addFnAttr("nvvm.maxnreg", std::to_string(kMaxRegisters));
  }
}

StatusOr<std::string> generateCode(llvm::Module& module, llvm::TargetMachine& machine) {
  llvm::SmallString<0> text;
  llvm::raw_svector_ostream stream(text);
  llvm::legacy::PassManager codegen;
  if (machine.addPassesToEmitFile(codegen, stream, nullptr, llvm::CodeGenFileType::AssemblyFile)) {
    return internalError("LLVM cannot emit PTX");
  }
  codegen.run(module);
  return text.str().str();
}

std::string asComment(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    size_t end = std::min(text.find('\n'), text.size() - 1);
    result += std::string(kComment) + std::string(text.substr(0, end + 1));
    text.remove_prefix(end + 1);
  }
  return result;
}

}  // namespace

bool hasPtxTarget() { return AG_HAS_NVPTX != 0; }

StatusOr<std::string> emitPtx(const compiler::Cluster& cluster, const std::string& symbol, Capability capability,
                              const compiler::CompileOptions& options) {
  AG_ASSIGN_OR_RETURN(auto machine, createTargetMachine(capability));
  AG_ASSIGN_OR_RETURN(KernelPlan plan, planKernel(cluster));
  llvm::LLVMContext context;
  AG_ASSIGN_OR_RETURN(std::unique_ptr<llvm::Module> module, emitDeviceModule(context, cluster, symbol, options));
  module->setDataLayout(machine->createDataLayout());
  module->setTargetTriple(machine->getTargetTriple());
  markKernels(*module, plan, symbol);
  AG_ASSIGN_OR_RETURN(std::string text, generateCode(*module, *machine));
  text = asComment(cluster.toString()) + text;
  // Compilation goes on if the file cannot be written, as for the other files of a dump.
  if (!options.dumpDir.empty()) (void)writeFile(formatText("{}/{}.ptx", options.dumpDir, symbol), text);
  return text;
}

StatusOr<compiler::Cluster> clusterOfPtx(std::string_view ptx) {
  std::string text;
  while (ptx.starts_with(kComment)) {
    size_t end = std::min(ptx.find('\n'), ptx.size() - 1);
    text += std::string(ptx.substr(kComment.size(), end + 1 - kComment.size()));
    ptx.remove_prefix(end + 1);
    if (text.ends_with("\nend\n")) break;
  }
  StatusOr<compiler::Cluster> cluster = compiler::Cluster::parse(text);
  if (!cluster.hasValue()) return dataLoss("the PTX does not open with a cluster: {}", cluster.status().message());
  return cluster;
}

}  // namespace agspeed::backends::nvptx
