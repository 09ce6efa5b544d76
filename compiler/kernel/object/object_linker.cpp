// SPDX-License-Identifier: Apache-2.0
#include "compiler/kernel/object/object_linker.h"

#include <cmath>
#include <cstring>
#include <map>

#include "compiler/kernel/object/host_target.h"
#include "llvm/ExecutionEngine/Orc/LLJIT.h"
#include "llvm/Object/ELFObjectFile.h"
#include "llvm/Target/TargetMachine.h"

namespace agspeed::compiler {
namespace {

struct LibraryFunction {
  const char* name;
  void* address;
};

// Selects an overload by type for overloaded names.
template <typename F>
void* addressOf(F* function) {
  return reinterpret_cast<void*>(function);
}
using F32Unary = float(float);
using F32Binary = float(float, float);
using F32Ternary = float(float, float, float);
using F64Unary = double(double);
using F64Binary = double(double, double);
using F64Ternary = double(double, double, double);

#define AG_UNARY(name) \
  {#name, addressOf<F64Unary>(::name)}, { #name "f", addressOf<F32Unary>(::name##f) }
#define AG_BINARY(name) \
  {#name, addressOf<F64Binary>(::name)}, { #name "f", addressOf<F32Binary>(::name##f) }

const LibraryFunction kLibraryFunctions[] = {
    AG_UNARY(acos),
    AG_UNARY(acosh),
    AG_UNARY(asin),
    AG_UNARY(asinh),
    AG_UNARY(atan),
    AG_BINARY(atan2),
    AG_UNARY(atanh),
    AG_UNARY(cbrt),
    AG_UNARY(ceil),
    AG_UNARY(cos),
    AG_UNARY(cosh),
    AG_UNARY(erf),
    AG_UNARY(erfc),
    AG_UNARY(exp),
    AG_UNARY(exp2),
    AG_UNARY(expm1),
    AG_UNARY(floor),
    AG_BINARY(fmod),
    AG_UNARY(log),
    AG_UNARY(log10),
    AG_UNARY(log1p),
    AG_UNARY(log2),
    AG_BINARY(pow),
    AG_UNARY(roundeven),
    AG_UNARY(sin),
    AG_UNARY(sinh),
    AG_UNARY(sqrt),
    AG_UNARY(tan),
    AG_UNARY(tanh),
    AG_UNARY(trunc),
    {"fma", addressOf<F64Ternary>(::fma)},
    {"fmaf", addressOf<F32Ternary>(::fmaf)},
    {"memcpy", reinterpret_cast<void*>(&std::memcpy)},
    {"memmove", reinterpret_cast<void*>(&std::memmove)},
    {"memset", reinterpret_cast<void*>(&std::memset)},
};

#undef AG_UNARY
#undef AG_BINARY

class LinkedKernels : public runtime::HostKernelLibrary {
 public:
  LinkedKernels(std::unique_ptr<llvm::orc::LLJIT> jit, std::vector<runtime::KernelFunction> functions,
                std::vector<size_t> codeBytes)
      : jit_(std::move(jit)), functions_(std::move(functions)), codeBytes_(std::move(codeBytes)) {}

  size_t numKernels() const override { return functions_.size(); }
  runtime::KernelFunction kernel(size_t index) const override {
    AG_CHECK(index < functions_.size(), "kernel {} of {}", index, functions_.size());
    return functions_[index];
  }
  void launch(size_t index, void* const* pointers, const int64_t* integers, int64_t begin, int64_t end) const override {
    kernel(index)(pointers, integers, begin, end);
  }
  size_t codeBytes(size_t index) const override { return codeBytes_.at(index); }

 private:
  std::unique_ptr<llvm::orc::LLJIT> jit_;  // owns the code
  std::vector<runtime::KernelFunction> functions_;
  std::vector<size_t> codeBytes_;
};

Status toStatus(llvm::Error error, std::string_view what) {
  if (!error) return {};
  return dataLoss("cannot " + std::string(what) + ": " + llvm::toString(std::move(error)));
}

StatusOr<std::unique_ptr<llvm::orc::LLJIT>> createJit() {
  AG_ASSIGN_OR_RETURN(auto machine, createHostTargetMachine());
  llvm::orc::LLJITBuilder builder;
  builder.setJITTargetMachineBuilder(llvm::orc::JITTargetMachineBuilder(machine->getTargetTriple()));
  builder.setDataLayout(machine->createDataLayout());
  builder.setLinkProcessSymbolsByDefault(false);
  builder.setPlatformSetUp(llvm::orc::setUpInactivePlatform);
  auto jit = builder.create();
  AG_RETURN_IF_ERROR(toStatus(jit.takeError(), "set up the kernel linker"));
  return std::move(*jit);
}

Status defineLibraryFunctions(llvm::orc::LLJIT& jit) {
  llvm::orc::SymbolMap symbols;
  for (const LibraryFunction& function : kLibraryFunctions) {
    symbols[jit.mangleAndIntern(function.name)] = {llvm::orc::ExecutorAddr::fromPtr(function.address),
                                                   llvm::JITSymbolFlags::Exported};
  }
  return toStatus(jit.getMainJITDylib().define(llvm::orc::absoluteSymbols(std::move(symbols))), "define libm symbols");
}

// The size of the kernel's function; 0 if the object does not say it.
size_t codeBytesOf(const KernelObject& object) {
  auto file = llvm::object::ObjectFile::createObjectFile(llvm::MemoryBufferRef(object.bytes, object.symbol));
  if (!file) {
    llvm::consumeError(file.takeError());
    return 0;
  }
  for (const llvm::object::SymbolRef& symbol : (*file)->symbols()) {
    llvm::Expected<llvm::StringRef> name = symbol.getName();
    if (name && *name == object.symbol) return llvm::object::ELFSymbolRef(symbol).getSize();
    if (!name) llvm::consumeError(name.takeError());
  }
  return 0;
}

}  // namespace

StatusOr<std::shared_ptr<const runtime::KernelLibrary>> linkKernels(const std::vector<KernelObject>& objects,
                                                                    const std::vector<std::string>& symbols) {
  AG_ASSIGN_OR_RETURN(auto jit, createJit());
  AG_RETURN_IF_ERROR(defineLibraryFunctions(*jit));
  std::map<std::string_view, size_t> bytesOfSymbol;
  for (const KernelObject& object : objects) {
    bytesOfSymbol[object.symbol] = codeBytesOf(object);
    auto buffer = llvm::MemoryBuffer::getMemBufferCopy(object.bytes, object.symbol);
    AG_RETURN_IF_ERROR(toStatus(jit->addObjectFile(std::move(buffer)), "read the object of kernel " + object.symbol));
  }
  std::vector<runtime::KernelFunction> functions;
  std::vector<size_t> codeBytes;
  for (const std::string& symbol : symbols) {
    auto address = jit->lookup(symbol);
    AG_RETURN_IF_ERROR(toStatus(address.takeError(), "link kernel " + symbol));
    functions.push_back(address->toPtr<runtime::KernelFunction>());
    codeBytes.push_back(bytesOfSymbol[symbol]);
  }
  std::shared_ptr<const runtime::KernelLibrary> library =
      std::make_shared<const LinkedKernels>(std::move(jit), std::move(functions), std::move(codeBytes));
  return library;
}

}  // namespace agspeed::compiler
