// SPDX-License-Identifier: Apache-2.0
#include "passes/kernel/funnel.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>

#include "llvm/Support/raw_ostream.h"
#include "mlir/IR/Diagnostics.h"
#include "mlir/Pass/PassManager.h"
#include "runtime/base/format.h"

namespace agspeed::compiler {
namespace {

std::string print(mlir::ModuleOp module) {
  std::string text;
  llvm::raw_string_ostream stream(text);
  module.print(stream);
  return text;
}

// Runs one pass; on failure returns false and fills `diagnostics`.
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

PassFunnel::PassFunnel(Options options) : options_(std::move(options)) {}

Status PassFunnel::run(const std::string& name, mlir::ModuleOp module, std::unique_ptr<mlir::Pass> pass) {
  const std::vector<std::string>& disabled = options_.disabledPasses;
  if (std::find(disabled.begin(), disabled.end(), name) != disabled.end()) return {};
  if (timings_.empty()) dump("emit", module);
  auto start = std::chrono::steady_clock::now();
  std::string diagnostics;
  bool ok = runPass(module, std::move(pass), options_.verifyEachPass, diagnostics);
  timings_.push_back({name, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count()});
  if (!ok) return failure(name, diagnostics);
  dump(name, module);
  return {};
}

void PassFunnel::dump(const std::string& pass, mlir::ModuleOp module) {
  if (options_.dumpDir.empty()) return;
  std::string text = print(module);
  std::string number = std::to_string(timings_.size());
  writeFile("." + number + "-" + pass + ".mlir", text == lastDump_ ? "(unchanged)\n" : text);
  lastDump_ = std::move(text);
}

void PassFunnel::dumpTimings() {
  std::string text;
  for (const PassTiming& timing : timings_) text += formatText("{} {}\n", timing.pass, timing.seconds * 1e3);
  writeFile(".timings.txt", text);
}

Status PassFunnel::failure(const std::string& pass, const std::string& diagnostics) {
  std::string path = writeFile(".reproducer.ag-cluster",
                               "// ag-opt --kernel --lower fails in pass " + pass + "\n" + options_.reproducer);
  std::string where =
      path.empty() ? "set a dump folder to get a reproducer" : "reproduce with ag-opt --kernel --lower " + path;
  return internalError("pass " + pass + " failed on kernel " + options_.subject + " (" + diagnostics + "); " + where);
}

// Returns the path, or empty when there is no dump folder or it cannot be written.
std::string PassFunnel::writeFile(const std::string& suffix, const std::string& text) {
  if (options_.dumpDir.empty()) return "";
  std::error_code ignored;
  std::filesystem::create_directories(options_.dumpDir, ignored);
  std::string path = options_.dumpDir + "/" + options_.subject + suffix;
  std::ofstream file(path, std::ios::binary);
  file << text;
  return file ? path : "";
}

}  // namespace agspeed::compiler
