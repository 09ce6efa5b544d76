// SPDX-License-Identifier: Apache-2.0
// PassFunnel: the one way an MLIR pass runs on a kernel. It times the pass, verifies the result, writes it to the dump
// folder ("(unchanged)" when the pass did nothing), skips passes disabled by name, and turns a failure into a Status
// that carries MLIR's diagnostics and names a reproducer file.
//
// One funnel per kernel, used by one thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "mlir/IR/BuiltinOps.h"
#include "mlir/Pass/Pass.h"
#include "runtime/base/status.h"

namespace agspeed::compiler {

class PassFunnel {
 public:
  struct Options {
    std::string dumpDir;  ///< empty: no dumps
    std::vector<std::string> disabledPasses;
    bool verifyEachPass = true;
    std::string subject;     ///< file name stem of dumps and reproducers
    std::string reproducer;  ///< text that ag-opt turns into the same module
  };

  explicit PassFunnel(Options options);

  /// Runs the pass unless it is disabled. Errors: kInternal with the pass, the diagnostics and the reproducer's path.
  Status run(const std::string& name, mlir::ModuleOp module, std::unique_ptr<mlir::Pass> pass);

  /// Writes "<pass> <milliseconds>" lines to the dump folder, if there is one.
  void dumpTimings();

 private:
  struct PassTiming {
    std::string pass;
    double seconds = 0;
  };

  void dump(const std::string& pass, mlir::ModuleOp module);
  Status failure(const std::string& pass, const std::string& diagnostics);
  std::string writeFile(const std::string& suffix, const std::string& text);

  Options options_;
  std::vector<PassTiming> timings_;
  std::string lastDump_;
};

}  // namespace agspeed::compiler
