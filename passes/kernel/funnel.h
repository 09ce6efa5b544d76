// SPDX-License-Identifier: Apache-2.0
// PassFunnel: runs the MLIR passes on a kernel. All of them go through it. It skips disabled passes, times the others,
// verifies each result and writes it to the dump folder. It turns a failure into a Status with MLIR's diagnostics and
// the path of a reproducer file.
//
// Each kernel has one funnel, which one thread uses. The funnel borrows the options and the module.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "compiler/options.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/Pass/Pass.h"
#include "passes/pass_trace.h"
#include "runtime/base/status.h"

namespace agspeed::passes {

class PassFunnel {
 public:
  /// `stem`: the kernel's name in errors and in the names of files. `reproducer`: the text from which ag-opt makes the
  /// same module.
  PassFunnel(const compiler::CompileOptions& options, std::string stem, mlir::ModuleOp module, std::string reproducer);

  /// Runs the pass unless it is disabled. Errors: kInternal with the pass, the diagnostics and the reproducer's path.
  /// If there is no dump folder, the message says to set one instead of the path.
  Status run(std::string_view name, std::unique_ptr<mlir::Pass> pass);

  void dumpTimings() const { trace_.dumpTimings(); }

  /// Writes a later form of the kernel, such as LLVM IR, as <dumpDir>/<kernel>.<extension>. Calls `print` only if there
  /// is a dump folder.
  void dumpCode(std::string_view extension, const std::function<std::string()>& print) const;

 private:
  void dump(std::string_view pass);
  Status failure(std::string_view pass, const std::string& diagnostics) const;

  const compiler::CompileOptions& options_;
  std::string stem_;
  mlir::ModuleOp module_;
  std::string reproducer_;
  PassTrace trace_;
};

}  // namespace agspeed::passes
