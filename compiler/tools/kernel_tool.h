// SPDX-License-Identifier: Apache-2.0
// The part of ag-opt that uses MLIR.
//
//   ag-opt --kernel [--pass=NAME]... [--lower] [--disable=NAME]... FILE|-
//
// FILE is a cluster ("cluster rank ..."), which is emitted as MLIR first, or an MLIR module. --pass runs one pass of
// passes/passes.def, --lower runs all of them. Lines that start with // are comments.
#pragma once

#include <string>
#include <vector>

#include "compiler/options.h"
#include "runtime/base/status.h"

namespace agspeed::compiler {

struct KernelToolOptions {
  std::vector<std::string> passes;
  bool lowers = false;  ///< runs all passes after `passes`
  CompileOptions compile;
};

/// The resulting module as text. Errors: kInvalidArgument for text that cannot be parsed or an unknown pass, else the
/// errors of buildKernels().
StatusOr<std::string> runKernelTool(const std::string& text, const KernelToolOptions& options);

}  // namespace agspeed::compiler
