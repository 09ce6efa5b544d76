// SPDX-License-Identifier: Apache-2.0
// PassFunnel: the one way an MLIR pass runs on a kernel. It times the pass, verifies the result, writes it to the dump
// folder, skips passes disabled by name, and turns a failure into a Status that carries MLIR's diagnostics and names a
// reproducer file.
//
// One funnel per kernel, used by one thread. Refers to the options and the module it was made with.
#pragma once

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
  /// `stem`: the kernel's name in errors and in the names of files. `reproducer`: text that ag-opt turns into the same
  /// module.
  PassFunnel(const compiler::CompileOptions& options, std::string stem, mlir::ModuleOp module, std::string reproducer);

  /// Runs the pass unless it is disabled. Errors: kInternal with the pass, the diagnostics and the reproducer's path.
  Status run(std::string_view name, std::unique_ptr<mlir::Pass> pass);

  void dumpTimings() const { trace_.dumpTimings(); }

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
