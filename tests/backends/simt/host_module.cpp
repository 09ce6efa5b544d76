// SPDX-License-Identifier: Apache-2.0
#include "tests/backends/simt/host_module.h"

#include <algorithm>
#include <cstring>
#include <mutex>

#include "backends/nvptx/device_module.h"
#include "backends/nvptx/kernel_plan.h"
#include "backends/nvptx/ptx.h"
#include "compiler/kernel/object/host_target.h"
#include "llvm/ExecutionEngine/Orc/LLJIT.h"
#include "llvm/IR/Module.h"
#include "llvm/Target/TargetMachine.h"
#include "tests/backends/simt/block_runner.h"

namespace agspeed::simt {

using backends::nvptx::Entry;
using backends::nvptx::entryName;
using backends::nvptx::KernelPlan;

namespace {

constexpr const char* kIntrinsicPrefix = "llvm.nvvm.";
constexpr unsigned kSharedMemory = 3;
constexpr int kGarbage = 0x7f;  // as floats: huge; as indices: far out of range

struct HostFunction {
  std::string name;
  KernelEntry entry = nullptr;
  size_t parameterBytes = 0;
};

struct SharedMemory {
  void* address = nullptr;
  size_t bytes = 0;
};

class HostModule : public Module {
 public:
  HostModule(std::unique_ptr<llvm::orc::LLJIT> jit, std::vector<HostFunction> functions,
             std::vector<SharedMemory> shared)
      : jit_(std::move(jit)), functions_(std::move(functions)), shared_(std::move(shared)) {}

  std::vector<std::string> functions() const override {
    std::vector<std::string> names;
    for (const HostFunction& function : functions_) names.push_back(function.name);
    return names;
  }

  size_t parameterBytes(std::string_view function) const override {
    const HostFunction* found = find(function);
    return found ? found->parameterBytes : 0;
  }

  Status launch(std::string_view function, Dim3 grid, Dim3 block, size_t sharedBytes, const void* parameters) override {
    const HostFunction* found = find(function);
    if (!found) return invalidArgument("the module has no function \"{}\"", function);
    AG_RETURN_IF_ERROR(checkShape(grid, block, sharedBytes));
    std::lock_guard lock(mutex_);
    BlockRunner runner(found->entry, parameters, grid, block);
    for (uint32_t index = 0; index < grid.x; ++index) {
      for (const SharedMemory& memory : shared_) std::memset(memory.address, kGarbage, memory.bytes);
      AG_RETURN_IF_ERROR(runner.run({index, 0, 0}).withContext(function));
    }
    return {};
  }

 private:
  static Status checkShape(Dim3 grid, Dim3 block, size_t sharedBytes) {
    uint64_t threads = uint64_t{block.x} * block.y * block.z;
    if (grid.x == 0 || grid.y != 1 || grid.z != 1) {
      return invalidArgument("a grid of {} x {} x {} blocks; kernels take (n, 1, 1)", grid.x, grid.y, grid.z);
    }
    if (threads == 0 || threads > 1024 || block.z != 1) {
      return invalidArgument("a block of {} x {} x {} threads", block.x, block.y, block.z);
    }
    if (sharedBytes != 0) return invalidArgument("{} bytes of dynamic shared memory that no kernel uses", sharedBytes);
    return {};
  }

  const HostFunction* find(std::string_view name) const {
    auto found = std::ranges::find_if(functions_, [&](const HostFunction& f) { return f.name == name; });
    return found == functions_.end() ? nullptr : &*found;
  }

  std::unique_ptr<llvm::orc::LLJIT> jit_;  // owns the code
  std::vector<HostFunction> functions_;
  std::vector<SharedMemory> shared_;
  std::mutex mutex_;
};

Status toStatus(llvm::Error error) {
  if (!error) return {};
  return internalError("cannot load the kernel on the host: {}", llvm::toString(std::move(error)));
}

// Replaces intrinsics by functions of the runner. The new declarations have none of the attributes that would let the
// host's code generator move a call.
void replaceIntrinsics(llvm::Module& module) {
  for (llvm::Function& function : llvm::make_early_inc_range(module)) {
    std::string name = function.getName().str();
    if (!name.starts_with(kIntrinsicPrefix)) continue;
    std::ranges::replace(name, '.', '_');
    auto callee = module.getOrInsertFunction(name, function.getFunctionType());
    function.replaceAllUsesWith(callee.getCallee());
    function.eraseFromParent();
  }
}

std::vector<std::pair<std::string, size_t>> exportSharedMemory(llvm::Module& module) {
  std::vector<std::pair<std::string, size_t>> found;
  for (llvm::GlobalVariable& global : module.globals()) {
    if (global.getAddressSpace() != kSharedMemory) continue;
    global.setLinkage(llvm::GlobalValue::ExternalLinkage);
    global.setInitializer(llvm::Constant::getNullValue(global.getValueType()));
    found.emplace_back(global.getName().str(), module.getDataLayout().getTypeAllocSize(global.getValueType()));
  }
  return found;
}

StatusOr<std::unique_ptr<llvm::orc::LLJIT>> createJit(const llvm::TargetMachine& machine) {
  llvm::orc::JITTargetMachineBuilder builder(machine.getTargetTriple());
  builder.setCPU(machine.getTargetCPU().str());
  builder.addFeatures(llvm::SubtargetFeatures(machine.getTargetFeatureString()).getFeatures());
  builder.setCodeGenOptLevel(llvm::CodeGenOptLevel::Less);
  auto jit = llvm::orc::LLJITBuilder()
                 .setJITTargetMachineBuilder(std::move(builder))
                 .setLinkProcessSymbolsByDefault(false)
                 .setPlatformSetUp(llvm::orc::setUpInactivePlatform)
                 .create();
  AG_RETURN_IF_ERROR(toStatus(jit.takeError()));
  llvm::orc::SymbolMap symbols;
  auto define = [&](const char* name, void* address) {
    symbols[(*jit)->mangleAndIntern(name)] = {llvm::orc::ExecutorAddr::fromPtr(address),
                                              llvm::JITSymbolFlags::Exported};
  };
  for (auto [name, address] : BlockRunner::intrinsics()) define(name, address);
  define("memset", reinterpret_cast<void*>(&std::memset));
  AG_RETURN_IF_ERROR(toStatus((*jit)->getMainJITDylib().define(llvm::orc::absoluteSymbols(std::move(symbols)))));
  return std::move(*jit);
}

std::string symbolOfPtx(std::string_view ptx) {
  size_t begin = ptx.find(".entry ");
  if (begin == std::string_view::npos) return "";
  std::string_view name = ptx.substr(begin + 7, ptx.find('(', begin) - begin - 7);
  return std::string(name.substr(0, name.rfind('_')));
}

}  // namespace

StatusOr<std::unique_ptr<Module>> compileForHost(const compiler::Cluster& cluster, const std::string& symbol,
                                                 const Mutation& mutate) {
  auto context = std::make_unique<llvm::LLVMContext>();
  AG_ASSIGN_OR_RETURN(KernelPlan plan, backends::nvptx::planKernel(cluster));
  AG_ASSIGN_OR_RETURN(std::unique_ptr<llvm::Module> module,
                      backends::nvptx::emitDeviceModule(*context, cluster, symbol, compiler::CompileOptions()));
  if (mutate) mutate(*module);
  AG_ASSIGN_OR_RETURN(auto machine, compiler::createHostTargetMachine());
  module->setDataLayout(machine->createDataLayout());
  module->setTargetTriple(machine->getTargetTriple());
  replaceIntrinsics(*module);
  auto sharedNames = exportSharedMemory(*module);
  AG_ASSIGN_OR_RETURN(auto jit, createJit(*machine));
  AG_RETURN_IF_ERROR(toStatus(jit->addIRModule(llvm::orc::ThreadSafeModule(std::move(module), std::move(context)))));
  std::vector<HostFunction> functions;
  for (Entry entry : plan.entries()) {
    auto address = jit->lookup(entryName(symbol, entry));
    AG_RETURN_IF_ERROR(toStatus(address.takeError()));
    auto slots = static_cast<size_t>(plan.numSlots());
    functions.push_back({entryName(symbol, entry), address->toPtr<KernelEntry>(), 8 * slots});
  }
  std::vector<SharedMemory> shared;
  for (const auto& [name, bytes] : sharedNames) {
    auto address = jit->lookup(name);
    AG_RETURN_IF_ERROR(toStatus(address.takeError()));
    shared.push_back({address->toPtr<void*>(), bytes});
  }
  return std::unique_ptr<Module>(std::make_unique<HostModule>(std::move(jit), std::move(functions), std::move(shared)));
}

StatusOr<std::unique_ptr<Module>> loadModule(std::string_view ptx) {
  AG_ASSIGN_OR_RETURN(compiler::Cluster cluster, backends::nvptx::clusterOfPtx(ptx));
  std::string symbol = symbolOfPtx(ptx);
  if (symbol.empty()) return dataLoss("the PTX has no entry");
  return compileForHost(cluster, symbol);
}

}  // namespace agspeed::simt
