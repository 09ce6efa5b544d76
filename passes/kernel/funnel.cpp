// SPDX-License-Identifier: Apache-2.0
#include "passes/kernel/funnel.h"

#include <chrono>

#include "llvm/Support/raw_ostream.h"
#include "mlir/IR/Diagnostics.h"
#include "mlir/Pass/PassManager.h"
#include "passes/pass_names.h"

namespace agspeed::passes {
namespace {

// Runs one pass. Returns false if it fails. Appends MLIR's diagnostics to `diagnostics`.
bool runPass(mlir::ModuleOp module, std::unique_ptr<mlir::Pass> pass, bool verify, std::string& diagnostics) {
  mlir::ScopedDiagnosticHandler handler(module.getContext(), [&](mlir::Diagnostic& diagnostic) {
    diagnostics += (diagnostics.empty() ? "" : "; ") + diagnostic.str();
    return mlir::success();
  });
  mlir::PassManager manager(module.getContext());
  manager.enableVerifier(verify);
  manager.addPass(std::move(pass));
  return mlir::succeeded(manager.run(module));
}

}  // namespace

PassFunnel::PassFunnel(const compiler::CompileOptions& options, std::string stem, mlir::ModuleOp module,
                       std::string reproducer)
    : options_(options),
      stem_(std::move(stem)),
      module_(module),
      reproducer_(std::move(reproducer)),
      trace_(options.dumpDir, stem_ + ".", ".mlir") {
  dump("emit");
}

Status PassFunnel::run(std::string_view name, std::unique_ptr<mlir::Pass> pass) {
  if (isDisabled(options_, name)) return {};
  auto begin = std::chrono::steady_clock::now();
  std::string diagnostics;
  bool ok = runPass(module_, std::move(pass), options_.verifyEachPass, diagnostics);
  trace_.addTiming(name, begin);
  if (!ok) return failure(name, diagnostics);
  dump(name);
  return {};
}

void PassFunnel::dumpCode(std::string_view extension, const std::function<std::string()>& print) const {
  if (!options_.dumpDir.empty()) trace_.writeFile(extension, print());
}

void PassFunnel::dump(std::string_view pass) {
  trace_.dump(pass, [this] {
    std::string text;
    llvm::raw_string_ostream stream(text);
    module_.print(stream);
    return text;
  });
}

Status PassFunnel::failure(std::string_view pass, const std::string& diagnostics) const {
  std::string path = trace_.writeFile("reproducer.ag-cluster",
                                      formatText("// ag-opt --kernel --lower fails in pass {}\n{}", pass, reproducer_));
  std::string where = path.empty() ? "set a dump folder to get a reproducer"
                                   : formatText("reproduce with ag-opt --kernel --lower {}", path);
  return internalError("pass {} failed on kernel {} ({}); {}", pass, stem_, diagnostics, where);
}

}  // namespace agspeed::passes
